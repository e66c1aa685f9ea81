"""The driver's fold by Arrow agrees with the Python fold, and its values with the codecs."""

import datetime as dt
import random
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pyarrow as pa
import pytest

from cdc import codecs
from cdc.envelope import Origin, RowEncoder, TransactionFields
from cdc.errors import LakeError, LogError
from cdc.fold import fold, settle
from cdc.position import Position, frontier
from cdc.schema import ARRAY, ERROR, WireType
from spark_jobs import newest
from spark_jobs.arrow_values import ArrowValues, Newest, _Refused
from spark_jobs.base import BaseRows
from spark_jobs.fold_driver import fold_in_driver
from spark_jobs.layout import GONE_COLUMN, Layout
from spark_jobs.newest import NewestRecords, TooLarge
from spark_jobs.records import Bounds
from tests.support.histories import PARTITIONS, random_history
from tests.support.schemas import INT4S, all_types_row, all_types_schema, column, table_schema

SCHEMA = table_schema(
    column(1, "id", codecs.INT4, not_null=True), ("a", codecs.INT8), column(3, "big")
)
LAYOUT = Layout(SCHEMA, "shop.public.orders")


class Held(BaseRows):
    def __init__(self, rows):
        self._held = rows

    def rows(self, keys, columns):
        return {k: {c: self._held[k][c] for c in columns} for k in keys if k in self._held}


class Log:
    """Gives records as the log's reader does, a few at a time."""

    def __init__(self, records, rng):
        self.parts = {p: [r for r in records if r.partition == p] for p in range(PARTITIONS)}
        self.rng = rng

    def ranges(self, ranges):
        left = {r.partition: list(self.parts[r.partition]) for r in ranges}
        while any(left.values()):
            partition = self.rng.choice([p for p, found in left.items() if found])
            size = self.rng.randrange(1, 6)
            some, left[partition] = left[partition][:size], left[partition][size:]
            yield "t", partition, [raw(record) for record in some]


def raw(record):
    headers = [
        ("cdc.position", str(record.position).encode()),
        ("cdc.schema", b"%d" % record.schema_version),
    ]
    for name, value in (("newkey", record.new_key), ("oldkey", record.old_key)):
        if value is not None:
            headers.append((f"__debezium.{name}", value))
    value = None
    if record.op != "tombstone":
        source = {"unchanged": record.unchanged} if record.unchanged else {}
        value = orjson.dumps(
            {"before": record.before, "after": record.after, "source": source, "op": record.op}
        )
    return record.offset, record.key, value, headers


def plan_of(bounds, layout=LAYOUT):
    offsets = {p: (0, 1 << 40) for p in range(PARTITIONS)}
    versions = {1: layout.schema}
    record = SimpleNamespace(topic="t")
    return SimpleNamespace(
        layout=layout, record=record, versions=versions, bounds=bounds, offsets=offsets
    )


@pytest.mark.parametrize("chunk", [3, 50_000])
def test_histories(monkeypatch, chunk):
    monkeypatch.setattr(newest, "_CHUNK_RECORDS", chunk)
    rng = random.Random(11)
    unsent = moved = truncated = 0
    for _ in range(400):
        history = random_history(rng.randrange(10**9))
        state = rng.choice([None, *history.states])
        end = history.states[-1][0]
        start, rows = (None, {}) if state is None else state
        truncate = history.newest_truncate(end)
        bounds = Bounds(start, end, truncate)
        records = sorted(history.records, key=lambda r: r.offset)
        expected = {
            key: (None if o.row is None else settle(o.row, rows), o.position.lsn)
            for key, o in fold(records, end, truncate, start=start).items()
        }
        tables, read, _ = fold_in_driver(
            cast(Any, Log(records, rng)), plan_of(bounds), Held(rows), 1 << 30
        )
        assert read >= len(records)
        found = {}
        for row in (row for table in tables for row in table.to_pylist()):
            key = orjson.dumps({"id": row["id"]})
            assert key not in found
            kept = {name: row[name] for name in SCHEMA.column_names}
            found[key] = (None if row[GONE_COLUMN] else kept, row["_cdc_lsn"])
        assert found == expected
        unsent += sum(bool(r.unchanged) for r in records)
        moved += sum(r.old_key is not None and bool(r.unchanged) for r in records)
        truncated += bounds.truncated
    assert unsent > 500 and moved > 50 and truncated > 20


def newest_of(schema, row, key=None):
    encoder = RowEncoder(schema, Origin("test", "shop", "shop"))
    txn = TransactionFields(0, 99, 1, 1, 1, snapshot=False)
    made, value, headers = encoder.insert(row, txn, 1)
    fields = dict(headers)
    return Newest(key or made, value, fields["cdc.position"], fields["cdc.schema"], 0, 5)


ODD = {
    "f4": [b"NaN", b"-Infinity", b"-0", b"3.4028235e+38", b"1e-45", b"16777217", b"0.1"],
    "f8": [b"NaN", b"Infinity", b"-0", b"5e-324", b"0.30000000000000004", b"12", b"1e+23"],
    "i8": [b"-9223372036854775808", b"0"],
    "n": [b"NaN", b"0.000", b"1" * 60 + b".5"],
    "t": [b"", b'{"unchanged":["t"]}', '\\"\n\t\x7f\u2028😀'.encode(), b'"op":"d"', b"null"],
    "y": [b"\\x", b"\\x" + b"ab" * 99],
    "d": [b"0001-01-01", b"9999-12-31", b"1582-10-10"],
    "ts": [b"0001-01-01 00:00:00", b"9999-12-31 23:59:59.999999", b"1900-02-28 00:00:00.1"],
    "tz": [b"0001-01-01 00:00:00+00", b"1969-12-31 23:59:59.999999+00"],
    "b": [b"f"],
}


def test_values_are_those_of_the_codecs():
    schema = all_types_schema()
    values = ArrowValues(Layout(schema, "shop.public.orders"), "t")
    rows = [all_types_row(), [b"7" if n == "id" else None for n in schema.column_names]]
    for name, texts in ODD.items():
        index = schema.column_names.index(name)
        rows += [[*all_types_row()[:index], t, *all_types_row()[index + 1 :]] for t in texts]
    fast = 0
    for number, row in enumerate(rows):
        row[schema.column_names.index("id")] = b"%d" % number
        records = [newest_of(schema, row)]
        slow = values._one_by_one(records)
        # NaN is not equal to itself, and -0.0 is to 0.0: text tells.
        assert repr(values.table(records).to_pylist()) == repr(slow.to_pylist())
        try:
            fast += values._by_arrow(records).equals(slow)
        except (pa.ArrowInvalid, _Refused):
            continue
    # Only NaN and infinity of floats are left to the codecs.
    assert fast >= len(rows) - 6
    together = [newest_of(schema, row) for row in rows]
    assert repr(values.table(together).to_pylist()) == repr(
        values._one_by_one(together).to_pylist()
    )


@pytest.mark.parametrize(
    "oid,type,text",
    [
        (codecs.DATE, None, b"infinity"),
        (codecs.DATE, None, b"0044-03-15 BC"),
        (codecs.DATE, None, b"12013-01-01"),
        (codecs.TIMESTAMP, None, b"-infinity"),
        (codecs.TIMESTAMP, None, b"0044-03-15 10:00:00 BC"),
        (codecs.TIMESTAMPTZ, None, b"12013-01-01 10:00:00+00"),
        (codecs.NUMERIC, "numeric(5,2)", b"NaN"),
        (codecs.NUMERIC, "numeric(5,2)", b"123456.00"),
        (codecs.NUMERIC, "numeric(5,2)", b"1.234"),
        (codecs.INT2, None, b"40000"),
        (codecs.INT8, None, b"9223372036854775808"),
    ],
)
def test_values_that_delta_cannot_hold(oid, type, text):
    schema = table_schema(("id", codecs.INT4), column(2, "x", oid, type=type, policy=ERROR))
    values = ArrowValues(Layout(schema, "shop.public.orders"), "t")
    records = [newest_of(schema, [b"1", None]), newest_of(schema, [b"2", text])]
    with pytest.raises(LakeError) as refused:
        values.table(records)
    assert refused.value.code == "value_out_of_range"
    assert refused.value.table == "shop.public.orders"
    assert "column x" in refused.value.message


def test_arrays_are_read_by_arrow_and_what_they_cannot_hold_is_counted():
    wire = WireType(codecs.DATE, -1, array=True)
    days = column(2, "days", 1182, type="date[]", wire=wire, policy=ARRAY)
    schema = table_schema(("id", codecs.INT4), days, column(3, "numbers", INT4S, policy=ARRAY))
    values = ArrowValues(Layout(schema, "shop.public.orders"), "t")
    plain = [
        newest_of(schema, [b"1", b"{2024-02-29,NULL}", b"{1,NULL}"]),
        newest_of(schema, [b"2", b"{}", None]),
    ]
    assert values._by_arrow(plain).equals(values._one_by_one(plain))
    odd = [
        newest_of(schema, [b"3", b"{infinity}", b"{{1},{2}}"]),
        newest_of(schema, [b"4", b"[0:0]={2024-02-29}", b"{3}"]),
    ]
    for records in ([odd[0]], [odd[1]]):
        with pytest.raises(_Refused):
            values._by_arrow(records)
    far: list[tuple[int, str]] = []
    found = values.table([*plain, *odd], far).to_pylist()
    assert sorted(far) == [(2, "days"), (2, "numbers"), (3, "days")]
    assert [(row["days"], row["numbers"]) for row in found] == [
        ([dt.date(2024, 2, 29), None], [1, None]),
        ([], None),
        ([dt.date(9999, 12, 31)], None),
        (None, [3]),
    ]


def test_keys_that_are_stored_and_keys_that_are_typed():
    schema = table_schema(("d", codecs.DATE), ("x", codecs.TEXT), key=("d",))
    values = ArrowValues(Layout(schema, "t"), "t")
    (row,) = values.table([newest_of(schema, [b"2013-01-02", None])]).to_pylist()
    assert str(row["d"]) == "2013-01-02" and row["_cdc_lsn"] == 99
    pair = table_schema(("a", codecs.INT4), ("b", codecs.TEXT), key=("b", "a"))
    (row,) = (
        ArrowValues(Layout(pair, "t"), "t").table([newest_of(pair, [b"1", b"\xc3\xa9"])])
    ).to_pylist()
    assert row["_cdc_key"] == '{"b":"é","a":1}'


GOOD = (b'{"id":1}', b'{"before":null,"after":{"id":1},"source":{},"op":"c"}')
HEADERS = [("cdc.position", str(Position(0, 10, 1)).encode()), ("cdc.schema", b"1")]


@pytest.mark.parametrize(
    "key,value,headers",
    [
        (GOOD[0], b'{"op":', HEADERS),
        (GOOD[0], b"", HEADERS),
        (GOOD[0], b'{"before":null,"after":{"id":1},"source":{},"op":"x"}', HEADERS),
        (GOOD[0], b'{"before":null,"after":null,"source":{},"op":"c"}', HEADERS),
        (GOOD[0], GOOD[1] + b"\n" + GOOD[1], HEADERS),
        (GOOD[0], b'{"before":null,"after":{"id":1,"big":"\xff"},"source":{},"op":"c"}', HEADERS),
        (None, GOOD[1], HEADERS),
        (*GOOD, HEADERS[:1]),
        (*GOOD, [("cdc.position", b"0"), HEADERS[1]]),
        (*GOOD, [HEADERS[0], ("cdc.schema", b"x")]),
    ],
)
def test_a_record_that_is_not_ours_is_named(key, value, headers):
    found = NewestRecords(LAYOUT, "t", Bounds(None, frontier(0, 99)), 1 << 30)
    with pytest.raises(LogError) as refused:
        found.add(2, [(41, key, value, headers)])
        found.found()
    assert refused.value.code == "bad_record"
    assert "t[2]@41" in refused.value.message


def test_memory_is_bounded():
    found = NewestRecords(LAYOUT, "t", Bounds(None, frontier(0, 99)), 20_000)
    with pytest.raises(TooLarge):
        for number in range(1000):
            found.add(0, [(number, b'{"id":%d}' % number, GOOD[1], HEADERS)])
    # A key that changes again and again takes no more than one.
    found = NewestRecords(LAYOUT, "t", Bounds(None, frontier(0, 99)), 200_000)
    for number in range(1000):
        found.add(0, [(number, *GOOD, HEADERS)])
    assert sum(table.num_rows for table in found.found().tables) == 1
