"""Differences between expected and derived rows."""

import pytest

from cdc.names import TableId
from tests.cases.case import Expected, digest
from tests.cases.rows import difference, lines_of


def table(rows, *, key=("id",), digested=None):
    lines = None if rows is None else tuple(lines_of(rows))
    return Expected(TableId("public", "t"), key, "select", ("id", "v"), lines, digested)


def test_equal_rows_in_any_order_do_not_differ():
    rows = [("1", "a"), ("2", None), ("2", None)]
    assert difference(table(rows), lines_of(rows[::-1]), None) == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([("1", "a")], '1 missing: ["2",null]'),
        ([("1", "a"), ("2", None), ("2", None)], '1 too many: ["2",null]'),
        ([("1", "b"), ("2", None)], 'key ["1"]: v is "b", not "a"'),
        ([("1", "a"), ("2", "")], 'key ["2"]: v is "", not null'),
        ([("1", "a"), ("2", "null")], 'key ["2"]: v is "null", not null'),
        ([("1", "a"), ("3", None)], '1 missing: ["2",null]; 1 too many: ["3",null]'),
    ],
)
def test_any_difference_is_told(found, said):
    assert difference(table([("1", "a"), ("2", None)]), lines_of(found), None) == said


def test_rows_without_a_key_are_counted():
    expected = table([("1", "a"), ("1", "a")], key=())
    assert difference(expected, lines_of([("1", "a")]), None) == '1 missing: ["1","a"]'


def test_many_differences_do_not_flood():
    expected = table([(str(i), "a") for i in range(500)])
    said = difference(expected, lines_of([(str(i), "b") for i in range(500)]), None)
    assert said.endswith("; and 497 rows more")
    assert len(said) < 200


def test_a_digest_is_compared_by_count_and_hash():
    rows = [("1", "a"), ("2", "b")]
    expected = table(None, digested=digest(lines_of(rows)))
    assert difference(expected, lines_of(rows[::-1]), None) == ""
    assert difference(expected, lines_of([("1", "a")]), None) != ""
    assert difference(expected, lines_of([("1", "a"), ("2", "c")]), None) != ""


def test_what_the_source_holds_may_stand_in_for_the_case():
    expected = table([("1", "a")])
    assert difference(expected, lines_of([("1", "z")]), lines_of([("1", "z")])) == ""
    assert difference(expected, lines_of([("1", "a")]), lines_of([("1", "z")])) != ""


def test_a_long_text_is_not_printed():
    expected = table([("1", "a" * 5000)])
    said = difference(expected, lines_of([("1", "b" * 5001)]), None)
    assert "a text of 5001 characters" in said
    assert len(said) < 200
