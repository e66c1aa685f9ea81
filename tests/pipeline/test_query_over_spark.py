"""``cdc query`` over replicas that Spark wrote: deletion vectors, added and mapped columns."""

import random
from dataclasses import replace

import pytest

from cdc import codecs
from cdc.config import load_config
from cdc.errors import CdcError
from cdc.names import TableId, lake_folder
from cdc.query.replica_reader import open_for_query
from cdc.query.run import run_query
from cdc.unsent import UNSENT
from spark_jobs.apply import ApplySettings, apply_once
from spark_jobs.log_state import LogAddress
from tests.support.loggen import Delete, Insert, LogGen, Truncate, Update
from tests.support.schemas import ALL_TYPES, column, table_schema

# Every type, and a key that is compared by its JSON; old dates show how instants are stored.
WIDE = replace(
    table_schema(
        column(1, "k", codecs.INT4, not_null=True),
        column(2, "l", codecs.TEXT, not_null=True),
        *(
            column(i, name, oid, type="numeric(26,6)" if name == "n" else None)
            for i, (name, (oid, _)) in enumerate(ALL_TYPES.items(), 3)
        ),
        key=("k", "l"),
    ),
    table="wide",
)
OLD = {"d": b"0001-01-01", "ts": b"0001-01-01 00:00:00.000001", "tz": b"1582-10-04 23:59:59+00"}
# A name that Parquet does not take is mapped, so that only deltalake knows the files' columns.
MAPPED = table_schema(
    ("id", codecs.INT8), ("a b", codecs.TEXT), ("at", codecs.TIMESTAMPTZ), table="mapped"
)


class Source:
    """A made-up source, its replicas by Spark, and what it holds."""

    def __init__(self, folder, gen, spark):
        (folder / "cdc.yaml").write_text(
            f"""\
project: test
log: {{bootstrap_servers: "{gen.bootstrap}", topic_prefix: "{gen.prefix}"}}
lake: {{path: "./my lake"}}
sources:
  shop: {{kind: postgres, host: localhost, database: shop, user: nobody,
          tables: [public.wide, public.mapped]}}
"""
        )
        self.config = load_config(folder / "cdc.yaml")
        self.gen = gen
        self.spark = spark
        self.held = {}

    def apply(self, *, by_spark=False):
        """Small batches are written directly, else."""
        address = LogAddress(self.gen.bootstrap, {}, self.gen.prefix)
        settings = ApplySettings(self.config.lake.path)
        if by_spark:
            settings = replace(settings, most_rewritten=0)
        apply_once(self.spark, address, settings, ["shop"])

    def replica(self, schema):
        folder = lake_folder(self.config.lake.path, "shop", *schema.id)
        return open_for_query(folder, f"shop.{schema.id}")

    def assert_query_is_source(self, schema):
        """All rows and columns, exactly."""
        result = run_query(self.config, f"select * from shop.{schema.id}")
        assert result.columns == schema.column_names
        images = self.gen.rows[schema.id].values()
        expected = [
            tuple(
                None if image.get(c.name) is None else codecs.from_json(c)(image[c.name])
                for c in schema.columns
            )
            for image in images
        ]
        assert sorted(result.rows, key=repr) == sorted(expected, key=repr)
        [(count,)] = run_query(self.config, f"select count(*) from shop.{schema.id}").rows
        assert count == len(expected)
        return result


@pytest.fixture
def source(stack, spark, topic_prefix, tmp_path):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        yield Source(tmp_path, gen, spark)


def wide(k, l="x", **values) -> list[object]:  # noqa: E741 - the column's name
    row = {name: text for name, (_, text) in ALL_TYPES.items()}
    row |= OLD if k % 2 else {}
    row |= values
    return [b"%d" % k, l.encode(), *row.values()]


def test_replicas_with_deletion_vectors(source):
    gen = source.gen
    gen.create([WIDE], partitions=2)
    rows = {k: wide(k) for k in range(60)}
    gen.load({WIDE.id: list(rows.values())})
    source.apply()
    assert source.assert_query_is_source(WIDE).tail_records == 0
    rng = random.Random(7)
    for by_spark in (True, True, False):
        changes: list[Insert | Update | Delete] = []
        for k in rng.sample(sorted(rows), 12):
            op = rng.choice("udk")
            if op == "u":
                new = wide(k, t=b"new %d" % rng.randrange(100), y=UNSENT)
                changes.append(Update(WIDE.id, rows[k], new))
                rows[k] = [o if n is UNSENT else n for o, n in zip(rows[k], new, strict=True)]
            elif op == "d":
                changes.append(Delete(WIDE.id, rows.pop(k)))
            else:
                moved = [rows[k][0], b"moved", *rows[k][2:]]
                changes.append(Update(WIDE.id, rows.pop(k), moved))
        added = max(rows) + 1 + rng.randrange(100)
        rows[added] = wide(added, b=None, n=None)
        gen.transaction(*changes, Insert(WIDE.id, rows[added]))
        # Before and after the merge.
        assert source.assert_query_is_source(WIDE).tail_records > 0
        source.apply(by_spark=by_spark)
        assert source.assert_query_is_source(WIDE).tail_records == 0
        replica = source.replica(WIDE)
        assert replica.plain
        # Directly, their files are written anew.
        assert bool(replica.table.deletion_vectors().read_all().num_rows) == by_spark
        assert all(" " in path for path in replica.files)


def test_an_added_column_and_a_truncate(source):
    gen = source.gen
    gen.create([WIDE])
    gen.load({WIDE.id: [wide(k) for k in range(5)]})
    source.apply()
    later = column(40, "later", codecs.TEXT)
    wider = replace(WIDE, version=2, columns=(*WIDE.columns, later))
    gen.alter(wider)
    gen.transaction(
        Insert(WIDE.id, [*wide(100), b"there"]), Update(WIDE.id, [*wide(1), None], [*wide(1), b"u"])
    )
    source.assert_query_is_source(wider)
    source.apply(by_spark=True)
    # Files with and without the column.
    assert len(source.replica(WIDE).files) > 1
    assert source.assert_query_is_source(wider).tail_records == 0
    gen.transaction(Truncate(WIDE.id), Insert(WIDE.id, [*wide(7), b"after"]))
    source.assert_query_is_source(wider)
    source.apply()
    assert len(source.assert_query_is_source(wider).rows) == 1


def test_mapped_columns_are_read_by_deltalake(source):
    gen = source.gen
    old = [b"1", b"x", b"0001-01-02 03:04:05.123456+00"]
    gen.create([MAPPED])
    gen.load({MAPPED.id: [old, [b"2", b"y", None], [b"3", None, b"2020-01-01 00:00:00+00"]]})
    source.apply()
    replica = source.replica(MAPPED)
    assert not replica.plain
    gen.transaction(Delete(MAPPED.id, [b"2", b"y", None]))
    source.assert_query_is_source(MAPPED)
    source.apply()
    assert source.assert_query_is_source(MAPPED).tail_records == 0


@pytest.mark.full
def test_a_replica_restored_by_hand_is_refused(source):
    gen = source.gen
    gen.create([MAPPED])
    gen.load({MAPPED.id: [[b"1", b"x", None]]})
    source.apply()
    gen.transaction(Insert(MAPPED.id, [b"2", b"y", None]))
    source.apply()
    path = lake_folder(source.config.lake.path, "shop", *TableId("public", "mapped"))
    source.spark.sql(f"restore table delta.`{path}` to version as of 1")
    with pytest.raises(CdcError) as error:
        run_query(source.config, "from shop.public.mapped")
    assert (error.value.code, error.value.table) == ("restored_by_hand", "shop.public.mapped")
