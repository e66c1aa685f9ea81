"""Columns whose names differ by case only, through Delta, the query and the log."""

import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from cdc import codecs
from cdc.config import load_config
from cdc.names import source_column
from cdc.query.run import run_query
from cdc.unsent import UNSENT
from spark_jobs.apply import Applier
from spark_jobs.rebuild import rebuild_table
from tests.support.compare import normal
from tests.support.lakes import Lake
from tests.support.loggen import Delete, Insert, LogGen, Update
from tests.support.schemas import table_schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: The last name is what the second one is called in Delta.
PLAIN = table_schema(
    ("id", codecs.INT4),
    ("ID", codecs.TEXT),
    ("a b", codecs.FLOAT8),
    ("A B", codecs.TIMESTAMP),
    ("ID~4944", codecs.TEXT),
    table="plain",
)
KEYED = table_schema(
    ("k", codecs.INT4), ("K", codecs.TEXT), ("v", codecs.TEXT), table="keyed", key=("K", "k")
)
SECOND = table_schema(("x", codecs.TEXT), ("X", codecs.INT8), table="second", key=("X",))
TABLES = (PLAIN, KEYED, SECOND)
AT = b"2013-01-01 05:00:00"
IN_DRIVER = pytest.param({}, marks=pytest.mark.full)


@pytest.mark.parametrize("path", [IN_DRIVER, {"small_range": 0, "few_keys": 0}])
def test_every_column_has_its_own_values(spark, stack, topic_prefix, tmp_path, path):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        lake = Lake(spark, gen, tmp_path / "lake", **path)
        names = ", ".join(f"public.{schema.table}" for schema in TABLES)
        (tmp_path / "cdc.yaml").write_text(
            f"""\
project: test
log: {{bootstrap_servers: "{gen.bootstrap}", topic_prefix: "{gen.prefix}"}}
lake: {{path: ./lake}}
sources: {{shop: {{kind: postgres, host: h, database: d, user: u, tables: [{names}]}}}}
"""
        )
        config = load_config(tmp_path / "cdc.yaml")

        def as_expected(schema, names, rows):
            """Names are as promised, and values those of the columns that they stand for."""
            found = {}
            for row in rows:
                named = {source_column(n): v for n, v in zip(names, row, strict=True)}
                held = {c.name: normal(c, named[c.name]) for c in schema.columns}
                found[tuple(held[name] for name in schema.key)] = held
            assert found == lake.expected(schema.id), schema.table

        def check(*, replica=True):
            for schema in TABLES:
                answer = run_query(config, f"select * from shop.public.{schema.table}")
                as_expected(schema, answer.columns, answer.rows)
                if replica:
                    builder = QueryBuilder().register("t", lake.replica(schema.id).table)
                    table = pa.table(builder.execute("select * from t").read_all())
                    columns = [column.to_pylist() for column in table.columns]
                    as_expected(schema, table.column_names, zip(*columns, strict=True))

        def plain(id, *values):
            return [b"%d" % id, *values]

        gen.create(TABLES)
        old = plain(1, b"long", b"1.5", AT, b"other")
        gen.load(
            {
                PLAIN.id: [old, plain(2, b"x", None, None, b"y")],
                KEYED.id: [[b"1", b"K", b"v"], [b"2", b"K", b"w"]],
                SECOND.id: [[b"low", b"7"], [b"low", b"8"]],
            }
        )
        check(replica=False)
        lake.apply()
        check()
        # What was not sent is the value of this very column.
        gen.transaction(
            Update(PLAIN.id, old, plain(1, UNSENT, b"-2.5", AT, UNSENT)),
            Insert(PLAIN.id, plain(3, b"upper", b"3", None, b"last")),
            Update(KEYED.id, [b"1", b"K", b"v"], [b"9", b"K", UNSENT]),
            Delete(SECOND.id, [b"low", b"7"]),
            Insert(SECOND.id, [b"new", b"9"]),
        )
        check(replica=False)
        lake.apply()
        check()
        answer = run_query(
            config, """select "ID~4944" from shop.public.plain where ID = 3 and "a b" = 3"""
        )
        assert answer.rows == [("upper",)]
        applier = Applier(spark, lake.address, lake.settings)
        try:
            rebuild_table(applier, "shop", PLAIN.id)
        finally:
            applier.close()
        check()
