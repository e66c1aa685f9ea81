"""What the demo takes for equal, and how it counts what is not."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc.query.result import QueryResult
from deploy.demo.compare import Difference, arrow_schema, delta_rows, difference, query_rows
from deploy.demo.data import DemoTable

TABLE = DemoTable(
    "t",
    {"a": "text", "n": "integer", "x": "double precision", "at": "timestamptz"},
    ("a", "n"),
)
SCHEMA = arrow_schema(TABLE)
NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)
ROWS = [("p", 1, 0.5, NOON), ("p", 2, None, None), ("", 1, -1e300, NOON)]


def table(rows):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )


def found(rows):
    return difference(table(ROWS), table(rows), TABLE.key)


def test_order_does_not_count():
    assert found(reversed(ROWS)) is None


def test_empty_tables_are_equal():
    assert difference(table([]), table([]), TABLE.key) is None


@pytest.mark.parametrize(
    "rows, expected",
    [
        (ROWS[1:], Difference(missing=1)),
        ([], Difference(missing=3)),
        ([*ROWS, ("q", 1, None, None)], Difference(extra=1)),
        ([*ROWS, ROWS[0]], Difference(extra=1)),
        ([("p", 1, 0.25, NOON), *ROWS[1:]], Difference(changed=1)),
        ([("p", 1, None, NOON), *ROWS[1:]], Difference(changed=1)),
        ([ROWS[0], ("p", 2, None, NOON), ROWS[2]], Difference(changed=1)),
        ([("p", 1, 0.5, NOON + dt.timedelta(microseconds=1)), *ROWS[1:]], Difference(changed=1)),
        # An empty string is not NULL, and a key like any other.
        ([*ROWS[:2], (None, 1, -1e300, NOON)], Difference(missing=1, extra=1)),
    ],
)
def test_differences_are_counted_in_keys(rows, expected):
    assert found(rows) == expected


def test_a_negative_zero_is_another_value():
    rows = [("p", 1, 0.0, None)]
    other = [("p", 1, -0.0, None)]
    assert difference(table(rows), table(other), TABLE.key) == Difference(changed=1)


def test_the_sentence_says_how_many():
    assert str(Difference(missing=2, changed=1)) == (
        "3 keys differ (2 missing, 0 too many, 1 with other values)"
    )


TYPES = ("VARCHAR", "INTEGER", "DOUBLE", "TIMESTAMP WITH TIME ZONE")


def test_an_answer_of_a_query_is_compared_as_it_is():
    answer = QueryResult(tuple(SCHEMA.names), TYPES, ROWS, {})
    assert difference(table(ROWS), query_rows(answer, TABLE), TABLE.key) is None
    empty = QueryResult(tuple(SCHEMA.names), TYPES, [], {})
    assert difference(table([]), query_rows(empty, TABLE), TABLE.key) is None


@pytest.mark.parametrize(
    "columns, types",
    [
        (tuple(SCHEMA.names), ("VARCHAR", "BIGINT", "DOUBLE", "TIMESTAMP WITH TIME ZONE")),
        (tuple(SCHEMA.names), ("VARCHAR", "INTEGER", "DOUBLE", "TIMESTAMP")),
        (("a", "n", "y", "at"), TYPES),
    ],
)
def test_other_types_or_names_in_an_answer_are_a_difference(columns, types):
    answer = QueryResult(columns, types, ROWS, {})
    found = difference(table(ROWS), query_rows(answer, TABLE), TABLE.key)
    assert found == Difference(columns=True)


def test_a_delta_table_is_read_without_hidden_columns(tmp_path):
    held = table(ROWS).append_column("_cdc_lsn", pa.array([1, 2, 3], pa.int64()))
    write_deltalake(tmp_path, held)
    assert difference(table(ROWS), delta_rows(str(tmp_path), TABLE), TABLE.key) is None


@pytest.mark.parametrize("name, kind", [("n", pa.int64()), ("x", pa.float32())])
def test_another_type_in_a_delta_table_is_a_difference(tmp_path, name, kind):
    rows = table([("p", 1, 0.5, NOON)])
    at = rows.column_names.index(name)
    write_deltalake(tmp_path, rows.set_column(at, name, rows[name].cast(kind)))
    assert difference(rows, delta_rows(str(tmp_path), TABLE), TABLE.key) == Difference(columns=True)
