"""Derived values are held against what the server prints: what would be bent on the way is told."""

import datetime as dt
from decimal import Decimal

import psycopg
import pytest

from cdc.names import TableId
from tests.cases.printing import Derived, printed, printed_values
from tests.cases.problem import CaseProblem

TABLE = TableId("Odd schema", 'a "b".c')
NAME = '"Odd schema"."a ""b"".c"'


def create(database, columns):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute('create schema "Odd schema"')
        connection.execute(f"create table {NAME} ({columns})")
        # Whoever compares must not need what the application's own statements would.
        connection.execute("create publication corpus_pub for all tables")
        connection.execute(f"insert into {NAME} default values")


def one(database, column, value, *, text=False, expression="x::text"):
    create(database, f"x {column}")
    derived = Derived(("x",), frozenset("x" if text else ""), [(value,)])
    rows = printed(database, TABLE, f"select {expression} from {NAME} order by 1", derived)
    assert len(rows) == 1, "the source's own row is among the derived ones"
    return rows[0][0]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("bool", False, "false"),
        ("bigint", 2**63 - 1, "9223372036854775807"),
        ("real", 0.10000000149011612, "0.1"),
        ("double precision", -0.0, "-0"),
        ("double precision", float("nan"), "NaN"),
        ("double precision", float("-inf"), "-Infinity"),
        ("double precision", 5e-324, "5e-324"),
        ("numeric(12,10)", Decimal("1E-10"), "0.0000000001"),
        ("bytea", b"\x00\xff", "\\x00ff"),
        ("date", dt.date(99, 1, 2), "0099-01-02"),
        (
            "timestamp(0)",
            dt.datetime.fromisoformat("2024-02-29T01:02:03.000040"),
            "2024-02-29 01:02:03.00004",
        ),
        ("timestamptz", dt.datetime(1, 1, 1, tzinfo=dt.UTC), "0001-01-01 00:00:00+00"),
        ("int", None, None),
    ],
)
def test_values_of_every_python_type_print_as_the_server_prints_them(database, column, value, said):
    assert one(database, column, value) == said


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        # A length or a scale would mend these.
        ("numeric(10,3)", "1.10", "1.10"),
        ("char(6)", "ab", "ab"),
        ("varchar(2)", "abc", "abc"),
        ("interval", "P1Y2M3DT4H", "1 year 2 mons 3 days 04:00:00"),
        ("timestamptz", "infinity", "infinity"),
        ("jsonb", '{"a": 1}', '{"a": 1}'),
        ("text", "", ""),
    ],
)
def test_derived_text_prints_as_it_is(database, column, text, said):
    shown = one(database, column, text, text=True, expression="format('%s', x)")
    assert shown == said


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("jsonb", '{"a":1}'),
        ("int[]", "{1, 2}"),
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
        ("inet", "192.0.2.7/32"),
        ("numeric", "1e2"),
        ("int4range", "[1,2]"),
    ],
)
def test_text_that_only_a_cast_would_make_equal_is_told(database, column, text):
    with pytest.raises(CaseProblem, match=r"not as the server prints it: x \(1\)"):
        one(database, column, text, text=True)


@pytest.fixture
def intervals_inside(database):
    """Types with intervals in them, and alike ones without."""
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute("create domain wait as interval")
        connection.execute("create type span as (a wait, n numeric)")
        connection.execute("create domain spans as span[]")
        connection.execute("create type outer_span as (s spans)")
        connection.execute("create type ivrange as range (subtype = interval)")
        connection.execute("create type pair as (a int, n numeric)")
        connection.execute("create type nrange as range (subtype = numeric)")
    return database


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("span", "(P1DT2H,1.50)", '("1 day 02:00:00",1.50)'),
        ("spans", '{"(P1D,1)",NULL}', '{"(\\"1 day\\",1)",NULL}'),
        ("outer_span", '("{""(PT0S,)""}")', '("{""(00:00:00,)""}")'),
        ("ivrange", "[P1D,P2D)", '["1 day","2 days")'),
        ("ivmultirange", "{[P1D,P2D)}", '{["1 day","2 days")}'),
    ],
)
def test_intervals_inside_of_others_print_as_the_server_prints_them(
    intervals_inside, column, text, said
):
    assert one(intervals_inside, column, text, text=True) == said


@pytest.mark.parametrize(
    ("column", "text"), [("pair", "(1, 2)"), ("pair[]", '{"(1, 2)"}'), ("nrange", "[1, 2)")]
)
def test_text_without_intervals_inside_must_be_as_printed(intervals_inside, column, text):
    with pytest.raises(CaseProblem, match=r"not as the server prints it: x \(1\)"):
        one(intervals_inside, column, text, text=True)


def test_a_value_that_the_type_does_not_take_is_told(database):
    with pytest.raises(CaseProblem, match="does not take derived values: invalid input syntax"):
        one(database, "int", "one", text=True)


def test_a_domain_does_not_mend_a_value(database):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute("create domain base as numeric(6,2)")
        connection.execute("create domain top as base")
    assert one(database, "top", Decimal("1.5")) == "1.5"


def test_the_source_is_as_it_was_before(database):
    create(database, "x int default 7 primary key")
    derived = Derived(("x", "unknown"), frozenset(), [(1, 0), (2, 0), (1, 0)])
    query = f"select x::text from {NAME} order by 1"
    assert printed(database, TABLE, query, derived) == [("1",), ("1",), ("2",)]
    with psycopg.connect(**database) as connection:
        assert connection.execute(query.encode()).fetchall() == [("7",)]


def test_a_table_that_the_source_has_no_more_is_told(database):
    derived = Derived(("x",), frozenset(), [(1,)])
    with pytest.raises(CaseProblem, match="does not exist"):
        printed(database, TableId("public", "gone"), "select x::text from gone", derived)


def test_key_values_print_as_the_output_functions_do(database):
    with psycopg.connect(**database) as connection:
        found = connection.execute(
            "select oid::int from unnest('{bool,numeric,bytea,timestamptz,bpchar}'::text[])"
            " with ordinality as named (name, place) join pg_type on typname = name order by place"
        ).fetchall()
    oids = [oid for (oid,) in found]
    rows = [
        (True, "1.50", b"\x00", "2024-01-01T00:00:00.000001Z", "ab  "),
        (False, "NaN", b"", "infinity", ""),
    ]
    assert printed_values(database, oids, rows) == [
        ("t", "1.50", "\\x00", "2024-01-01 00:00:00.000001+00", "ab  "),
        ("f", "NaN", "\\x", "infinity", ""),
    ]
    assert printed_values(database, oids, []) == []
