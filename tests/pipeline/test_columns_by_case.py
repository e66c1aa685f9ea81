"""Columns that have other names in Delta, through Delta, the query and the log."""

import pytest

from cdc import codecs
from cdc.names import RESERVED_COLUMNS, source_column
from cdc.query.run import run_query
from cdc.unsent import UNSENT
from tests.support.compare import by_key
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
#: Every name that Spark or Delta takes for its own, one as the key.
RESERVED = table_schema(
    *((name, codecs.TEXT) for name in sorted(RESERVED_COLUMNS)),
    table="reserved",
    key=("_metadata",),
)
AT = b"2013-01-01 05:00:00"
IN_SPARK = pytest.param({"small_range": 0, "few_keys": 0}, marks=pytest.mark.full)


@pytest.mark.parametrize("path", [{}, IN_SPARK])
def test_every_column_has_its_own_values(spark, stack, topic_prefix, tmp_path, path):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        lake = Lake(spark, gen, tmp_path / "lake", **path)
        gen.create(TABLES)
        config = lake.config()

        def check_query():
            """Names are as promised, and values those of the columns that they stand for."""
            for schema in TABLES:
                answer = run_query(config, f"select * from shop.public.{schema.table}")
                names = [source_column(name) for name in answer.columns]
                rows = [dict(zip(names, row, strict=True)) for row in answer.rows]
                assert by_key(schema, rows) == lake.expected(schema.id), schema.table

        def check():
            check_query()
            lake.assert_same()

        def plain(id, *values):
            return [b"%d" % id, *values]

        old = plain(1, b"long", b"1.5", AT, b"other")
        gen.load(
            {
                PLAIN.id: [old, plain(2, b"x", None, None, b"y")],
                KEYED.id: [[b"1", b"K", b"v"], [b"2", b"K", b"w"]],
                SECOND.id: [[b"low", b"7"], [b"low", b"8"]],
            }
        )
        check_query()
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
        check_query()
        lake.apply()
        check()
        answer = run_query(
            config, """select "ID~4944" from shop.public.plain where ID = 3 and "a b" = 3"""
        )
        assert answer.rows == [("upper",)]
        lake.rebuild(PLAIN.id)
        check()


def test_columns_whose_names_spark_needs(spark, stack, topic_prefix, tmp_path):
    def row(key, value):
        return [key if c.name == "_metadata" else value for c in RESERVED.columns]

    with LogGen(stack.bootstrap, topic_prefix) as gen:
        lakes = [
            Lake(spark, gen, tmp_path / "lake", most_rewritten=0, **options)
            for options in ({}, {"few_keys": 0})
        ]
        gen.create([RESERVED])

        def check():
            lakes[0].assert_same()
            answer = run_query(lakes[0].config(), "select * from shop.public.reserved")
            rows = [tuple(kept.values()) for kept in gen.rows[RESERVED.id].values()]
            assert sorted(answer.rows) == sorted(rows)

        gen.load({RESERVED.id: [row(b"%d" % n, b"old") for n in range(9)]})
        lakes[0].apply()
        check()
        # The second one finds files with rows that the first one marked as deleted.
        for lake, how, n in zip(lakes, ("overwrite", "merge"), (0, 3), strict=True):
            changed, gone = b"%d" % n, b"%d" % (n + 1)
            gen.transaction(
                Update(RESERVED.id, row(changed, b"old"), row(changed, b"new")),
                Delete(RESERVED.id, row(gone, b"old")),
            )
            assert lake.apply()["shop.public.reserved"].action == how
            check()
        lakes[0].rebuild(RESERVED.id)
        check()
