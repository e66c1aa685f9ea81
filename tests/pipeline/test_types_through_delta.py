"""Every type that the server knows, from its text through the log to Delta and to ``cdc query``."""

import dataclasses
import datetime as dt
import itertools
from contextlib import closing

import orjson
import psycopg
import pytest

from cdc import codecs
from cdc.codecs import TypePolicies
from cdc.errors import LakeError
from cdc.load import ChunkPlan
from cdc.names import TableId
from cdc.position import Position
from cdc.query.run import run_query
from cdc.schema import ARRAY, STRING, WireType
from connectors.postgres.catalog import read_tables
from snapshots.copytext import parse_columns
from snapshots.source import ChunkCopy, open_session
from tests.support.lakes import Lake
from tests.support.loggen import Insert, LogGen, Update
from tests.support.pgtypes import create_types, fill
from tests.support.schemas import INT4S, column, table_schema

pytestmark = pytest.mark.spark


#: Of every way that a type can travel, one.
SOME = frozenset(
    "bool int8 oid float4 float8 numeric money text bpchar bytea date time timestamp timestamptz"
    " interval inet jsonb xml point box int4range hstore price2 tags mood pair".split()
)


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.full)])
def server_rows(database, request):
    """A schema with a column of every type and of its arrays, and rows of the server's texts."""
    with psycopg.connect(**database, autocommit=True) as writer:
        known = create_types(writer)
        wanted_kinds = [k for k in known if request.param == "all" or k.name in SOME]
        kinds = [kind for i, kind in enumerate(wanted_kinds) if fill(writer, kind, i)]
        tables = [r[0] for r in writer.execute("select relname::text from pg_class where"
                  " relname ~ '^t[0-9]+$' and relkind = 'r' order by oid").fetchall()]  # fmt: skip
    columns, values = [column(1, "id", codecs.INT4, not_null=True)], []
    with closing(open_session(database, "cdc types")) as session:
        found = read_tables(session, [TableId("public", name) for name in tables])
        for definition in found.values():
            schema = definition.schema(1, Position(0, 0, 0))
            copy = ChunkCopy(session, schema, ChunkPlan.whole(1000, 1), 0)
            texts_of = parse_columns(b"".join(copy.blocks()), len(schema.columns))
            for index, wanted in enumerate(schema.columns[1:], 1):
                texts = [text for text in texts_of[index] if text is not None]
                if texts:
                    number = len(columns) + 1
                    columns.append(dataclasses.replace(wanted, id=number, name=f"c{number}"))
                    values.append(texts)
    assert len(columns) > len(kinds)
    lines = itertools.zip_longest(*values)
    return table_schema(*columns), [[b"%d" % i, *line] for i, line in enumerate(lines)]


def test_every_type_through_delta(stack, spark, topic_prefix, tmp_path, server_rows, request):
    schema, rows = server_rows
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        gen.create([schema])
        gen.load({schema.id: rows})
        lakes = {
            (kind, small): Lake(spark, gen, tmp_path / f"{kind}{small}", small_range=small, **given)
            for kind, given in (
                ("typed", {"policies": lambda *_: as_arrays(schema)}),
                ("texts", {"policies": lambda *_: as_texts(schema)}),
            )
            for small in (50_000, 0)
            if kind == "typed" or small or request.config.getoption("--full")
        }
        expected = {tuple(map(text_of, row)) for row in rows}
        for (kind, _), lake in lakes.items():
            config = lake.config(entry(as_texts(schema) if kind == "texts" else as_arrays(schema)))
            before = answer(config)
            lake.apply()
            # From the log alone, and from the replica alone: the same.
            after = answer(config)
            assert sorted(map(repr, after.rows)) == sorted(map(repr, before.rows))
            assert (before.tail_records > 0, after.tail_records) == (True, 0)
            if kind == "texts":
                assert {(str(row[0]), *row[1:]) for row in after.rows} == expected
        arrays = entry(as_arrays(schema))
        typed = [answer(lakes["typed", small].config(arrays)).rows for small in (50_000, 0)]
        assert sorted(map(repr, typed[0])) == sorted(map(repr, typed[1]))
        # Infinity, BC and years above 9999: counted alike in both ways.
        counts = [lakes["typed", s].replica(schema.id).out_of_range for s in (50_000, 0)]
        assert counts[0] == counts[1]
        assert sorted(counts[0].values()) == far_counts(schema, rows)
        gen.transaction(
            Update(schema.id, rows[0], rows[0]),
            Insert(schema.id, [b"99", *rows[0][1:]]),
        )
        lakes["typed", 50_000].apply()
        again = lakes["typed", 50_000].replica(schema.id).out_of_range
        first = far_counts(schema, [rows[0]])
        assert sum(again.values()) == sum(counts[0].values()) + 2 * sum(first)
        assert lakes["texts", 50_000].replica(schema.id).out_of_range == {}


def as_texts(schema):
    """A policy for every column but the key."""
    return TypePolicies({}, {c.name: STRING for c in schema.columns[1:]})


def as_arrays(schema):
    """ARRAY for every array."""
    return TypePolicies({}, {c.name: ARRAY for c in schema.columns if c.resolved.array})


def entry(policies):
    """The table as cdc.yaml has it."""
    return f"{{name: public.orders, types: {dict(policies.columns)}}}"


def answer(config):
    return run_query(config, "select * from shop.public.orders")


def text_of(value):
    return None if value is None else value.decode()


def far_counts(schema, rows):
    """Number of values that Delta cannot hold, of the columns that have any."""
    counts = []
    for index, wanted in enumerate(as_arrays(schema).put_into(schema).columns):
        if codecs.bends(wanted):
            texts = [row[index] for row in rows if row[index] is not None]
            encode = codecs.codec_of(wanted).to_json
            far = [codecs.is_out_of_range(wanted, orjson.loads(encode(t))) for t in texts]
            counts.append(sum(far))
    return sorted(filter(None, counts))


def test_a_column_becomes_an_array_by_a_rebuild(stack, spark, topic_prefix, tmp_path):
    schema = table_schema(("id", codecs.INT4), ("n", INT4S))
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        gen.create([schema])
        gen.load({schema.id: [[b"1", b"{1,NULL}"], [b"2", b"{{1}}"]]})
        Lake(spark, gen, tmp_path / "lake").apply()
        gen.transaction(Insert(schema.id, [b"3", b"{}"]))
        lake = Lake(spark, gen, tmp_path / "lake", policies=lambda *_: as_arrays(schema))
        with pytest.raises(LakeError, match="column n is string") as caught:
            lake.apply()
        assert caught.value.code == "schema_differs"
        assert caught.value.remedy == "cdc rebuild shop.public.orders --from-offset 0"
        lake.rebuild(schema.id)
        config = lake.config(entry(as_arrays(schema)))
        expected = [(1, [1, None]), (2, None), (3, [])]
        assert sorted(answer(config).rows) == expected
        assert lake.replica(schema.id).out_of_range == {"n": 1}
        # It goes on, with a column more, of a type that the Delta table did not have.
        wire = WireType(codecs.TIMESTAMP, -1, array=True)
        at = column(3, "at", 1115, type="timestamp[]", wire=wire)
        wider = gen.alter(table_schema(*schema.columns, at, version=2))
        gen.transaction(Insert(wider.id, [b"4", b"{7}", b'{"2013-01-01 00:00:00"}']))
        lake = Lake(spark, gen, tmp_path / "lake", policies=lambda *_: as_arrays(wider))
        lake.apply()
        config = lake.config(entry(as_arrays(wider)))
        assert sorted(answer(config).rows) == [
            *((*row, None) for row in expected),
            (4, [7], [dt.datetime.fromisoformat("2013-01-01")]),
        ]
