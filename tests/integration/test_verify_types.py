"""Every type that the server knows is printed alike by the source's side and by ours."""

from dataclasses import replace

import orjson
import psycopg
import pytest

from cdc import codecs
from cdc.batch_encoder import BatchEncoder
from cdc.control import TableRecord
from cdc.envelope import Origin, RowEncoder, TransactionFields
from cdc.errors import CdcError, LakeError
from cdc.load import ChunkPlan
from cdc.names import TableId
from cdc.position import Position
from cdc.query.engine import open_connection
from cdc.query.source_view import TablePlan
from cdc.query.statement import TableName
from cdc.query.tail import Tail
from cdc.schema import (
    ARRAY,
    ARRAY_ERROR,
    ARRAY_NULL,
    CLAMP,
    ERROR,
    NULL,
    STRING,
    TableSchema,
)
from cdc.states import READY
from cdc.verify.derived import DerivedTable
from cdc.verify.forms import range_of
from connectors.postgres.catalog import read_tables
from connectors.postgres.verify_source import open_snapshot
from snapshots.copytext import parse_columns
from snapshots.source import ChunkCopy, open_session
from tests.support.pgtypes import GENERAL, LITERALS, OWN, server_types

#: Of a value, and of an array.
POLICIES = ((CLAMP, CLAMP), (NULL, ARRAY_NULL), (STRING, ARRAY), (ERROR, ARRAY_ERROR))
MORE = {
    "bpchar": ["ab  ", ""],
    "text": ["\x1f", "\x1f,\x1fN", "a\x1f"],
}


def fill(writer, kind, number):
    """A table of one type and its array, with the literals of it that the server takes."""
    array = kind.array or "text[]"
    writer.execute(f"create table t{number} (id serial primary key, v {kind.sql}, a {array})")
    for literal in [*LITERALS.get(kind.name, GENERAL), *MORE.get(kind.name, [])]:
        try:
            writer.execute(f"insert into t{number} (v) values (%s)", (literal,))
        except psycopg.Error:
            continue
        if kind.array:
            writer.execute(
                f"insert into t{number} (a) values (%s::text[]::{array})", ([literal, None],)
            )
    # None, one, with a bound of its own, and of two dimensions.
    for shape in ("array[0]", "array[1]", "array[2], array[0]", "array[2, 1]"):
        element = f"null::{kind.sql if kind.array else 'text'}"
        writer.execute(f"insert into t{number} (a) values (array_fill({element}, {shape}))")
    writer.execute(f"insert into t{number} (v) values (null)")


def derived_rows(session, schema):
    """The rows that Delta can hold, as the log's tail gives them; the ids of the others."""
    copy = ChunkCopy(session, schema, ChunkPlan.whole(1000, 1), 0)
    columns = parse_columns(b"".join(copy.blocks()), len(schema.columns))
    encoder = BatchEncoder(RowEncoder(schema, Origin("0", "shop", "db")))
    load = TransactionFields(0, 1, None, 1, 1, snapshot=True)
    _, values = encoder.snapshot_rows(columns, load)
    held, lost = [], []
    for value in values:
        image = orjson.loads(value)["after"]
        try:
            held.append(
                tuple(
                    None if image[c.name] is None else codecs.from_json(c)(image[c.name])
                    for c in schema.columns
                )
            )
        except LakeError:
            lost.append(image["id"])
    return held, lost


def with_policies(schema):
    """The schema, and as policies make it, where that makes a difference."""
    found: dict[object, TableSchema] = {}
    for pair in POLICIES:
        columns = [
            c if c.name == "id" else replace(c, policy=pair[c.resolved.array])
            for c in schema.columns
        ]
        forms = tuple(
            (codecs.delta_type(c), codecs.bends(c.element or c) and c.policy) for c in columns
        )
        found.setdefault(forms, replace(schema, columns=tuple(columns)))
    return found.values()


def plan_of(schema):
    at = Position(0, 2, 0)
    record = TableRecord(schema.id, READY, 1, "t", "id", 1, ready_from=at)
    name = TableName("shop", schema.id)
    return TablePlan(name, record, schema, {1: schema}, None, at, None, ())


def assert_printed_alike(snapshot, session, schema):
    held, lost = derived_rows(session, schema)
    with open_connection() as connection, snapshot.table(schema) as source:
        derived = DerivedTable(connection, plan_of(schema), Tail((), held, False, settled=True))
        ranges = sorted(source.sums().keys() | derived.sums().keys())
        # Rows that Delta cannot hold are the only ones that differ.
        found = derived.against(source.rows(ranges), ranges, 1000)
        assert set(found) == {((str(id),), "missing") for id in lost}, schema.columns
        keys = [(str(row[0]),) for row in held]
        assert source.values(keys) == derived.values(keys)
        if not lost:
            assert source.sums() == derived.sums()
        return len(held)


@pytest.mark.full
def test_every_type_of_the_server(database):
    with psycopg.connect(**database, autocommit=True) as writer:
        for extension in ("citext", "hstore", "ltree"):
            writer.execute(f"create extension {extension}".encode())
        for statement in OWN.strip().split(";\n"):
            writer.execute(statement.encode())
        kinds = server_types(writer)
        for number, kind in enumerate(kinds):
            fill(writer, kind, number)
    tables = [TableId("public", f"t{i}") for i in range(len(kinds))]
    with open_session(database, "cdc types") as session, open_snapshot(database, 20) as snapshot:
        definitions = read_tables(session, tables)
        compared = 0
        for definition in definitions.values():
            schema = definition.schema(1, Position(0, 1, 0))
            for changed in with_policies(schema):
                compared += assert_printed_alike(snapshot, session, changed)
    assert len(definitions) == len(kinds) > 80
    assert compared > 500


KEYS = {
    "text": (["a", "\x1f,", "é"], 3),
    "float8": (["0", "-1.5", "NaN", "Infinity"], 4),
    "bytea": (["\\x00", "\\x"], 2),
    "int8": (["-1", "9223372036854775807", "-9223372036854775808", "0", "4096"], 5),
    "int2": (["-7"], 1),
    "timestamptz": (["2020-01-01 00:00:00.5+00"], 1),
    "numeric(4,4)": (["0.5", "-0.5"], 2),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_type_fall_into_the_same_ranges(database, kind):
    literals, count = KEYS[kind]
    with psycopg.connect(**database, autocommit=True) as writer:
        writer.execute(f"create table t (id {kind} primary key)")
        for literal in literals:
            writer.execute("insert into t values (%s)", (literal,))
    with open_session(database, "cdc types") as session, open_snapshot(database, 20) as snapshot:
        (definition,) = read_tables(session, [TableId("public", "t")]).values()
        schema = definition.schema(1, Position(0, 1, 0))
        held, _ = derived_rows(session, schema)
        with open_connection() as connection, snapshot.table(schema) as source:
            derived = DerivedTable(connection, plan_of(schema), Tail((), held, False, settled=True))
            assert source.sums() == derived.sums()
            assert sum(part.rows for part in source.sums().values()) == count
            keys = [key for batch in source.rows(range(4096)) for (*key, _) in batch]
            assert {range_of(schema, key) for key in keys} == source.sums().keys()
            assert len(source.values([tuple(key) for key in keys])) == count
            assert len(derived.values([tuple(key) for key in keys])) == count


def test_a_wide_table_in_another_encoding(stack, database):
    name = f"{database['dbname']}_latin1"
    options = "encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0"
    conninfo = stack.postgres.create_database(name, options)
    try:
        names = [f"c{i} text" for i in range(250)]
        with psycopg.connect(**conninfo, autocommit=True) as writer:
            writer.execute(f"create table t (id text primary key, {', '.join(names)})")
            writer.execute("insert into t (id, c0, c100, c249) values ('é', 'à', 'ü', 'ß')")
        with (
            open_session(conninfo, "cdc types") as session,
            open_snapshot(conninfo, 20) as snapshot,
        ):
            (definition,) = read_tables(session, [TableId("public", "t")]).values()
            schema = definition.schema(1, Position(0, 1, 0))
            held, _ = derived_rows(session, schema)
            with open_connection() as connection, snapshot.table(schema) as source:
                tail = Tail((), held, False, settled=True)
                derived = DerivedTable(connection, plan_of(schema), tail)
                assert source.sums() == derived.sums()
    finally:
        stack.postgres.drop_database(name)


def test_a_partitioned_table_is_read_with_its_partitions(database):
    with psycopg.connect(**database, autocommit=True) as writer:
        writer.execute("create table t (id int primary key, v text) partition by range (id)")
        writer.execute("create table t_1 partition of t for values from (0) to (100)")
        writer.execute("create table t_2 partition of t for values from (100) to (200)")
        writer.execute("insert into t select i, 'v' || i from generate_series(1, 150) i")
        with open_session(database, "cdc types") as session:
            (definition,) = read_tables(session, [TableId("public", "t")]).values()
        schema = definition.schema(1, Position(0, 1, 0))
        assert schema.partitioned
        with open_snapshot(database, 20) as snapshot:
            with snapshot.table(schema) as source:
                assert sum(part.rows for part in source.sums().values()) == 150
            writer.execute("truncate t_2")
            with pytest.raises(CdcError) as error, snapshot.table(schema):
                pass
        assert error.value.code == "table_altered"
        assert "truncated" in error.value.message


def test_rows_that_the_publication_leaves_out_are_not_read(database):
    with psycopg.connect(**database, autocommit=True) as writer:
        if writer.info.server_version < 150000:
            pytest.skip("row filters came with version 15")
        writer.execute("create table t (id int primary key, v text)")
        writer.execute("insert into t select i, 'v' || i from generate_series(1, 150) i")
        writer.execute("create publication some_rows for table t where (id > 100 or v = 'v7')")
    with open_session(database, "cdc types") as session, open_snapshot(database, 20) as snapshot:
        tables = [TableId("public", "t")]
        (definition,) = read_tables(session, tables, "some_rows").values()
        schema = definition.schema(1, Position(0, 1, 0))
        assert TableSchema.from_record(1, 1, schema.to_record()) == schema
        held, _ = derived_rows(session, schema)
        assert len(held) == 51
        with open_connection() as connection, snapshot.table(schema) as source:
            derived = DerivedTable(connection, plan_of(schema), Tail((), held, False, settled=True))
            assert source.sums() == derived.sums()
            rows = [row for batch in source.rows(range(4096)) for row in batch]
            assert {key for key, _ in rows} == {str(i) for i in (7, *range(101, 151))}
            assert source.values([("7",), ("8",)]) == derived.values([("7",), ("8",)])
