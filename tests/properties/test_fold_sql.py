"""Spark's fold, the Python fold and applying one by one agree, on random histories."""

import dataclasses
import random
from functools import partial

import orjson
import pyarrow as pa
import pytest

from cdc import codecs
from cdc.envelope import parse_record
from cdc.errors import LakeError, LogError
from cdc.fold import Inherit, apply_in_order, fold, settle
from cdc.position import Position, frontier
from spark_jobs import fold_chains
from spark_jobs.base import BaseRows
from spark_jobs.fold_sql import fold_sql
from spark_jobs.layout import GONE_COLUMN, Layout
from spark_jobs.records import Bounds
from spark_jobs.session import worker_session
from tests.support.histories import random_history
from tests.support.raw_records import RAW
from tests.support.schemas import column, table_schema

pytestmark = pytest.mark.spark

SCHEMA = table_schema(
    column(1, "id", codecs.INT4, not_null=True), ("a", codecs.INT8), column(3, "big")
)
LAYOUT = Layout(SCHEMA, "shop.public.orders")


class Held(BaseRows):
    """A replica's rows that are not in a Delta table."""

    def __init__(self, session, rows, layout=LAYOUT):
        self._session, self._held, self._layout = session, rows, layout

    def frame(self):
        names = [name for name, _ in self._layout.columns if not name.startswith("_cdc_")]
        schema = pa.schema([self._layout.arrow_schema(gone=False).field(n) for n in names])
        return self._session.createDataFrame(
            pa.Table.from_pylist(list(self._held.values()), schema)
        )

    def rows(self, keys, columns):
        return {k: {c: self._held[k][c] for c in columns} for k in keys if k in self._held}


def raw_row(record):
    """A LogRecord as the broker would give it."""
    headers = [
        {"key": "cdc.position", "value": str(record.position).encode()},
        {"key": "cdc.schema", "value": b"%d" % record.schema_version},
    ]
    for name, value in (("newkey", record.new_key), ("oldkey", record.old_key)):
        if value is not None:
            headers.append({"key": f"__debezium.{name}", "value": value})
    value = None
    if record.op != "tombstone":
        source = {"unchanged": record.unchanged} if record.unchanged else {}
        value = orjson.dumps(
            {"before": record.before, "after": record.after, "source": source, "op": record.op}
        )
    return {
        "key": record.key,
        "value": value,
        "partition": record.partition,
        "offset": record.offset,
        "headers": headers,
    }


def by_sql(session, records, bounds, base, layout=LAYOUT):
    """Key to row (None: gone) and LSN, from Spark."""
    table = pa.Table.from_pylist([raw_row(r) for r in records], RAW)
    folded = fold_sql(session, lambda: session.createDataFrame(table), layout, bounds, base)
    rows = folded.frame.toArrow().to_pylist()
    folded.release()
    assert folded.keys == len(rows)
    assert folded.gone == sum(row[GONE_COLUMN] for row in rows)
    result = {}
    for row in rows:
        key = orjson.dumps({"id": row["id"]})
        assert key not in result
        kept = {name: row[name] for name in layout.schema.column_names}
        result[key] = (None if row[GONE_COLUMN] else kept, row["_cdc_lsn"])
    return result


def by_python(records, bounds, rows):
    outcomes = fold(records, bounds.frontier, bounds.truncate, start=bounds.start)
    return {
        key: (None if o.row is None else settle(o.row, rows), o.position.lsn)
        for key, o in outcomes.items()
    }


def shifted(record, by):
    """The same record of another key space, so that many histories fit in one table."""

    def key(text):
        return None if text is None else orjson.dumps({"id": orjson.loads(text)["id"] + by})

    after = None if record.after is None else {**record.after, "id": record.after["id"] + by}
    return dataclasses.replace(
        record,
        key=key(record.key),
        after=after,
        new_key=key(record.new_key),
        old_key=key(record.old_key),
    )


def state_at(history, position):
    """The source's rows at a frontier that need not be the end of a commit."""
    rows = {}
    start = 0
    for at, after in history.states:
        if start < position.lsn:
            rows = after
        start = at.lsn
    return rows


def test_many_histories_in_one_range(spark):
    session = worker_session(spark)
    rng = random.Random(5)
    for start, end in ((None, frontier(0, 1096)), (frontier(0, 1048), frontier(0, 1112))):
        records = []
        rows: dict[bytes, dict[str, object]] = {}
        expected: dict[bytes, dict[str, object]] = {}
        for number in range(90):
            history = random_history(rng.randrange(10**9), transactions=14)
            if history.newest_truncate(end) is not None:
                continue
            by = 1000 * number
            records += [shifted(r, by) for r in history.records]
            for held, at in ((rows, start), (expected, end)):
                if at is not None:
                    for row in state_at(history, at).values():
                        shifted_row = {**row, "id": row["id"] + by}
                        held[orjson.dumps({"id": shifted_row["id"]})] = shifted_row
        rng.shuffle(records)
        # Offsets of different histories meet in one partition; only their order per key counts.
        bounds = Bounds(start, end)
        found = by_sql(session, records, bounds, Held(session, rows) if start else None)
        assert found == by_python(records, bounds, rows)
        assert sum(bool(r.unchanged) for r in records) > 100
        applied = {**rows, **{k: row for k, (row, _) in found.items()}}
        assert {k: row for k, row in applied.items() if row is not None} == expected


@pytest.mark.parametrize("seed", [3, 19, 57])
def test_truncates_cut(spark, seed):
    session = worker_session(spark)
    rng = random.Random(seed)
    history = next(
        h
        for h in (random_history(rng.randrange(10**9)) for _ in range(10_000))
        if h.truncates and h.states[4][0] < h.truncates[-1] < h.states[9][0]
    )
    start, end = history.states[4][0], history.states[-1][0]
    truncate = history.newest_truncate(end)
    bounds = Bounds(start, end, truncate)
    rows = history.state_at(start)
    found = by_sql(session, history.records, bounds, Held(session, rows))
    assert bounds.truncated and not bounds.has_base
    assert found == by_python(history.records, bounds, rows)
    in_order = apply_in_order({}, history.records, end, truncate)
    assert {k: row for k, (row, _) in found.items() if row is not None} == in_order
    assert in_order == history.state_at(end)


def record(offset, op, lsn, id=1, *, after=None, unchanged=(), old=None, new=None):
    return parse_record(
        "t",
        0,
        offset,
        b'{"id":%d}' % id,
        None
        if op == "tombstone"
        else orjson.dumps(
            {"before": None, "after": after, "source": {"unchanged": unchanged}, "op": op}
        ),
        [
            ("cdc.position", str(Position(0, lsn, 1)).encode()),
            ("cdc.schema", b"1"),
            *([("__debezium.oldkey", b'{"id":%d}' % old)] if old else []),
            *([("__debezium.newkey", b'{"id":%d}' % new)] if new else []),
        ],
    )


TWO = Layout(
    table_schema(column(1, "id", codecs.INT4), ("x", codecs.TEXT), ("y", codecs.NUMERIC)),
    "shop.public.orders",
)


def test_two_columns_are_inherited_each_on_its_own(spark):
    session = worker_session(spark)
    records = [
        # 1: x from the range, y from the replica
        record(1, "u", 10, 1, after={"id": 1, "x": "new"}, unchanged=["y"]),
        record(2, "u", 11, 1, after={"id": 1}, unchanged=["x", "y"]),
        # 2: not in the replica, both re-read; the first re-read counts
        record(3, "u", 12, 2, after={"id": 2, "x": "r1", "y": "1"}, unchanged=["x", "y"]),
        record(4, "u", 13, 2, after={"id": 2, "x": "r2", "y": "2"}, unchanged=["x", "y"]),
        # 3 → 4 → 5: moved twice without its columns, y set on the way
        record(5, "d", 14, 3, new=4),
        record(6, "tombstone", 14, 3),
        record(7, "c", 14, 4, after={"id": 4}, unchanged=["x", "y"], old=3),
        record(8, "u", 15, 4, after={"id": 4, "y": "9.50"}, unchanged=["x"]),
        record(9, "d", 16, 4, new=5),
        record(10, "tombstone", 16, 4),
        record(11, "c", 16, 5, after={"id": 5}, unchanged=["x", "y"], old=4),
        # 6: a re-read NULL is a value
        record(12, "u", 17, 6, after={"id": 6, "x": None, "y": "3"}, unchanged=["x"]),
        # 7: only the tombstone is left of a delete
        record(13, "tombstone", 18, 7),
    ]
    rows = {
        b'{"id":1}': {"id": 1, "x": "old", "y": "7"},
        b'{"id":3}': {"id": 3, "x": None, "y": "8"},
        b'{"id":7}': {"id": 7, "x": "gone", "y": "0"},
    }
    bounds = Bounds(frontier(0, 5), frontier(0, 99))
    found = by_sql(session, records, bounds, Held(session, rows, TWO), TWO)
    expected = {
        b'{"id":1}': ({"id": 1, "x": "new", "y": "7"}, 11),
        b'{"id":2}': ({"id": 2, "x": "r1", "y": "1"}, 13),
        b'{"id":3}': (None, 14),
        b'{"id":4}': (None, 16),
        b'{"id":5}': ({"id": 5, "x": None, "y": "9.50"}, 16),
        b'{"id":6}': ({"id": 6, "x": None, "y": "3"}, 17),
        b'{"id":7}': (None, 18),
    }
    assert found == expected
    assert by_python(records, bounds, rows) == expected
    assert any(
        isinstance(v, Inherit)
        for o in fold(records, bounds.frontier, start=bounds.start).values()
        for v in (o.row or {}).values()
    )


#: What the fold calls columns of its own, or once did; the last is what Spark's JSON parser does.
OURS = "v0 f0 r0 b0 l0 at a present keys k s t _corrupt_record".split()
LIKE_OURS = Layout(
    table_schema(column(1, "id", codecs.INT4), *((name, codecs.TEXT) for name in OURS)),
    "shop.public.orders",
)


def test_columns_may_have_any_names(spark):
    session = worker_session(spark)
    unsent = ["v0", "_corrupt_record"]
    old, new = ({name: f"{age} {name}" for name in OURS} for age in ("old", "new"))
    sent = {name: text for name, text in new.items() if name not in unsent}
    records = [
        # 1: unsent is what the replica has; 2: what the range has; 3: what was re-read.
        record(1, "u", 10, 1, after={"id": 1, **sent}, unchanged=unsent),
        record(2, "c", 11, 2, after={"id": 2, **new}),
        record(3, "u", 12, 2, after={"id": 2, **sent}, unchanged=unsent),
        record(4, "u", 13, 3, after={"id": 3, **new}, unchanged=unsent),
    ]
    rows = {b'{"id":1}': {"id": 1, **old}}
    bounds = Bounds(frontier(0, 5), frontier(0, 99))
    found = by_sql(session, records, bounds, Held(session, rows, LIKE_OURS), LIKE_OURS)
    assert found == {
        b'{"id":1}': ({"id": 1, **old, **sent}, 10),
        b'{"id":2}': ({"id": 2, **new}, 12),
        b'{"id":3}': ({"id": 3, **new}, 13),
    }


def test_a_key_may_be_called_as_what_spark_cannot_parse(spark):
    session = worker_session(spark)
    schema = table_schema(("_corrupt_record", codecs.TEXT), key=("_corrupt_record",))
    raw = raw_row(record(1, "c", 10, after={"_corrupt_record": "a"}))
    table = pa.Table.from_pylist([{**raw, "key": b'{"_corrupt_record":"a"}'}], RAW)
    bounds = Bounds(None, frontier(0, 99))
    layout = Layout(schema, "shop.public.orders")
    folded = fold_sql(session, lambda: session.createDataFrame(table), layout, bounds, None)
    assert [row["_corrupt_record"] for row in folded.frame.toArrow().to_pylist()] == ["a"]
    folded.release()


@pytest.mark.parametrize("limit", ["MOST_KEYS", "MOST_BYTES"])
def test_moved_rows_are_folded_up_to_a_limit(spark, monkeypatch, limit):
    monkeypatch.setattr(fold_chains, limit, 0)
    records = [
        record(1, "d", 14, 3, new=4),
        record(2, "tombstone", 14, 3),
        record(3, "c", 14, 4, after={"id": 4}, unchanged=["x", "y"], old=3),
    ]
    bounds = Bounds(frontier(0, 5), frontier(0, 99))
    rows = {b'{"id":3}': {"id": 3, "x": None, "y": "8"}}
    with pytest.raises(LakeError) as refused:
        by_sql(worker_session(spark), records, bounds, Held(worker_session(spark), rows, TWO), TWO)
    assert (refused.value.code, refused.value.table) == ("too_many_moved", "shop.public.orders")


def test_a_value_that_is_nowhere_is_an_error(spark):
    session = worker_session(spark)
    records = [record(1, "u", 10, 1, after={"id": 1, "y": "1"}, unchanged=["x"])]
    for start, base in ((None, None), (frontier(0, 5), Held(session, {}, TWO))):
        bounds = Bounds(start, frontier(0, 99))
        with pytest.raises(LogError) as lost:
            by_sql(session, records, bounds, base, TWO)
        assert lost.value.code == "value_lost"
        assert "column x" in lost.value.message
        with pytest.raises(LogError):
            by_python(records, bounds, {})


def test_a_record_that_is_not_ours_is_named(spark):
    session = worker_session(spark)
    bad = dict(raw_row(record(41, "u", 10, 1, after={"id": 1, "x": "a", "y": None})))
    for field, value in (
        ("value", b'{"op":'),
        ("value", b'{"op":"x","after":{},"source":{}}'),
        ("headers", bad["headers"][:1]),
    ):
        frame = session.createDataFrame(pa.Table.from_pylist([{**bad, field: value}], RAW))
        with pytest.raises(LogError) as refused:
            fold_sql(session, partial(frame.select, "*"), TWO, Bounds(None, frontier(0, 99)), None)
        assert refused.value.code == "bad_record"
        assert "offset 41 of partition 0" in refused.value.message
