"""Columns that leave a table leave its replica, or are NULL there, in the commit that says so."""

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from cdc import codecs
from cdc.query.run import run_query
from cdc.unsent import UNSENT
from tests.support.lakes import Lake
from tests.support.loggen import Delete, Insert, LogGen, Truncate, Update
from tests.support.schemas import column, table_schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DOCS = table_schema(
    column(1, "id", codecs.INT4, not_null=True),
    ("title", codecs.TEXT),
    ("body", codecs.TEXT),
    column(4, "price", codecs.NUMERIC, type="numeric(10,2)"),
    ("at", codecs.TIMESTAMP),
    table="docs",
)
AT = b"2013-01-01 05:00:00"


def row(id, *values):
    return [b"%d" % id, *values]


def without(schema, name, *, hidden=False):
    """The schema when a column was dropped."""
    gone = dataclasses.replace(schema.column(name), hidden=hidden)
    return dataclasses.replace(
        schema,
        version=schema.version + 1,
        columns=tuple(c for c in schema.columns if c.name != name),
        dropped=(*schema.dropped, gone),
    )


def held(lake, *names):
    """The rows of a replica's columns, as another engine reads them."""
    builder = QueryBuilder().register("docs", lake.replica(DOCS.id).table)
    query = f"select {', '.join(('id', *names))} from docs"
    rows = pa.table(builder.execute(query).read_all()).to_pylist()
    return {found.pop("id"): found for found in rows}


def newest_commit(lake):
    folder = Path(lake.path(DOCS.id), "_delta_log")
    newest = max(p for p in folder.glob("*.json") if p.stem.isdigit())
    return {kind for line in newest.read_text().splitlines() for kind in json.loads(line)}


IN_SPARK = pytest.param({"small_range": 0, "few_keys": 0}, marks=pytest.mark.full)


@pytest.mark.parametrize("path", [{}, IN_SPARK])
def test_a_dropped_column_is_null_in_every_row_or_gone(spark, stack, topic_prefix, tmp_path, path):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        lake = Lake(spark, gen, tmp_path / "lake", **path)
        gen.create([DOCS])
        config = lake.config()

        def queried(names):
            found = run_query(config, "select * from shop.public.docs order by id")
            assert set(found.columns) == set(names)
            return [dict(zip(found.columns, r, strict=True)) for r in found.rows]

        gen.load({DOCS.id: [row(i, b"t", b"long", b"1.50", AT) for i in (1, 2, 3, 4)]})
        lake.apply()
        # Unsent before and after, in one batch with the drop: by lenient it stays, NULL.
        gen.transaction(
            Update(
                DOCS.id,
                row(1, b"t", b"long", b"1.50", AT),
                [b"1", b"t1", UNSENT, UNSENT, AT],
            )
        )
        lenient = gen.alter(without(DOCS, "body"))
        gen.transaction(
            Insert(DOCS.id, row(5, b"new", b"2.50", AT)),
            Delete(DOCS.id, row(4, b"t", b"1.50", AT)),
            Update(DOCS.id, row(2, b"t", b"1.50", AT), row(2, UNSENT, b"3.50", AT)),
        )
        names = {"id", "title", "price", "at", "body"}
        # From the replica as it was, and the log.
        assert {r["body"] for r in queried(names)} == {None}
        before = lake.replica(DOCS.id).version
        assert lake.apply()["shop.public.docs"].action == "rewrite"
        assert lake.replica(DOCS.id).version == before + 1
        assert {"commitInfo", "txn", "add", "remove"} <= newest_commit(lake)
        lake.assert_same()
        assert {r["body"] for r in held(lake, "body").values()} == {None}
        assert {r["body"] for r in queried(names)} == {None}
        # Later batches need not know of it.
        gen.transaction(
            Update(DOCS.id, row(3, b"t", b"1.50", AT), row(3, b"t3", None, AT)),
            Insert(DOCS.id, row(6, b"t", b"1.50", AT)),
        )
        assert lake.apply()["shop.public.docs"].action in ("overwrite", "merge")
        lake.assert_same()
        assert {r["body"] for r in held(lake, "body").values()} == {None}
        # Another one goes, with no event, as the catalog shows.
        evolved = gen.alter(without(lenient, "price", hidden=True))
        gen.keepalive()
        assert [r["id"] for r in queried(names - {"price"})] == [1, 2, 3, 5, 6]
        assert lake.apply()["shop.public.docs"].action == "rewrite"
        lake.assert_same()
        replica = lake.replica(DOCS.id)
        assert "price" not in replica.columns and replica.position == gen.position
        assert lake.apply()["shop.public.docs"].action == "current"
        # From the log alone it is the same.
        lake.rebuild(DOCS.id)
        lake.assert_same()
        assert set(lake.replica(DOCS.id).columns) == set(replica.columns)
        assert {r["body"] for r in held(lake, "body").values()} == {None}
        # One comes, with no event; the next batch has nothing else.
        more = column(7, "more", codecs.TEXT)
        evolved = gen.alter(
            dataclasses.replace(
                evolved, version=evolved.version + 1, columns=(*evolved.columns, more)
            )
        )
        gen.keepalive()
        lake.apply()
        assert {r["more"] for r in held(lake, "more").values()} == {None}
        assert lake.apply()["shop.public.docs"].action == "current"
        # All rows and a column at once.
        gen.transaction(Truncate(DOCS.id))
        gen.alter(without(evolved, "at"))
        gen.transaction(Insert(DOCS.id, row(9, b"last", b"new")))
        assert lake.apply()["shop.public.docs"].action == "rewrite"
        lake.assert_same()
        assert held(lake, "body", "at") == {9: {"body": None, "at": None}}


@pytest.mark.full
def test_ignored_columns_are_not_derived(spark, stack, topic_prefix, tmp_path):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        lakes = [Lake(spark, gen, tmp_path / "a"), Lake(spark, gen, tmp_path / "b", small_range=0)]
        gen.create([DOCS])
        old = row(1, b"t", b"long", b"1.50", AT)
        gen.load({DOCS.id: [old]})
        for lake in lakes:
            lake.apply()
        ignored = dataclasses.replace(column(6, "more", codecs.TEXT), hidden=True)
        wider = dataclasses.replace(DOCS, version=2, columns=(*DOCS.columns, ignored))
        gen.alter(wider)
        gen.transaction(
            Update(DOCS.id, [*old, None], [*old[:4], b"2014-01-01 00:00:00", UNSENT]),
            Insert(DOCS.id, row(2, b"t", None, None, None, b"unseen")),
        )
        for lake in lakes:
            assert lake.apply()["shop.public.docs"].action in ("overwrite", "merge")
            found = held(lake, "title", "at")
            assert {id: r["at"] and r["at"].year for id, r in found.items()} == {1: 2014, 2: None}
            assert "more" not in lake.replica(DOCS.id).columns
