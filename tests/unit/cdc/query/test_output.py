"""Answers keep every value exactly in each of their forms."""

import csv
import datetime as dt
import io
import json
from decimal import Decimal

import pytest

from cdc.position import frontier
from cdc.query.output import json_value, summary, to_csv, to_json, to_table
from cdc.query.result import AsOf, QueryResult

AT = AsOf(frontier(0, 0x16B3780), 1_700_000_000_000_000, 0.2)


def result(*rows, columns=("a",), types=("VARCHAR",), as_of=None):
    return QueryResult(columns, types, list(rows), as_of or {"shop": AT})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (2**63 - 1, 9223372036854775807),
        (2**100, 2**100),
        (0.1, 0.1),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E-7"), "0.0000001"),
        (b"\x00\xff", "AP8="),
        ("é\n", "é\n"),
        (dt.date(1, 2, 3), "0001-02-03"),
        (dt.datetime.fromisoformat("2020-01-01T00:00:00"), "2020-01-01T00:00:00.000000"),
        (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "2020-01-01T00:00:00.000000Z"),
        (dt.time(1, 2, 3, 4), "01:02:03.000004"),
        ([1, None, Decimal("2.0")], [1, None, "2.0"]),
    ],
)
def test_json_values(value, shown):
    assert json_value(value) == shown
    assert type(json_value(value)) is type(shown)
    assert json.loads(json.dumps(json_value(value))) == shown


def test_json():
    shown = to_json(result(("x",), (None,), types=("VARCHAR",)))
    assert shown["columns"] == [{"name": "a", "type": "VARCHAR"}]
    assert shown["rows"] == [["x"], [None]]
    assert shown["row_count"] == 2
    assert shown["as_of"]["shop"] == {
        "position": "0000-00000000016B3780-00000000",
        "end_lsn": "0/16B3780",
        "last_commit_us": 1_700_000_000_000_000,
        "age_seconds": 0.2,
        "last_good": False,
    }


def test_csv_tells_null_from_empty():
    text = to_csv(result((None, ""), ("a,b", ' "q"\n'), columns=("x", "y z")))
    assert text == 'x,y z\r\n,""\r\n"a,b"," ""q""\n"\r\n'
    assert list(csv.reader(io.StringIO(text)))[2] == ["a,b", ' "q"\n']


def test_csv_values():
    row = (True, 1, Decimal("1.50"), b"\x00", float("nan"), dt.date(2020, 1, 1))
    assert to_csv(result(row, columns=tuple("abcdef"))).splitlines()[1] == (
        "true,1,1.50,AA==,NaN,2020-01-01"
    )


def test_table_is_aligned():
    rows = [("é", 1), ("日本", 1000), (None, None)]
    text = to_table(result(*rows, columns=("name", "n"), types=("VARCHAR", "BIGINT")))
    assert text.splitlines() == [
        "name     n",
        "────  ────",
        "é        1",
        "日本  1000",
        "NULL  NULL",
        "",
        "3 rows, as of shop 0/16B3780, 0.2 s ago",
    ]


def test_data_cannot_steer_the_terminal():
    text = to_table(result(("\x1b[2J\x07\r\n\u202e",)))
    assert "\x1b" not in text and "\u202e" not in text
    assert r"\x1b[2J\x07\r\n\u202e" in text


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.04, "0.0 s"), (119, "119.0 s"), (600, "10 min"), (7200 * 2, "4 h")]
)
def test_ages(seconds, words):
    at = AsOf(AT.position, 0, seconds)
    assert (
        summary(result(("x",), as_of={"shop": at})) == f"1 row, as of shop 0/16B3780, {words} ago"
    )


def test_last_good_is_said():
    at = AsOf(AT.position, 0, 1.0, last_good=True)
    assert "(last good)" in summary(result(as_of={"shop": at}))
