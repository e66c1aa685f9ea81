"""Derived values as the server itself prints them.

A derived table is put into the source's database for a moment, in place of the source's own
table, in a transaction that is rolled back; the case's own query then prints it. So a derived
value passes only if Postgres takes it for the very same value and prints the very same text.

What would mend a value on its way in is left out: columns have their base types without length
or scale. And where a derived column is text, its text has to be what the server prints already,
because that is what a user sees.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from cdc.names import TableId
from tests.cases.problem import CaseProblem
from tests.cases.source_side import canonical_session

_AWAY: Final = "cdc_cases_away"
_NUMBER: Final = "cdc_cases_n"
#: Types that have several usual spellings, each of which can be written back to the same text.
_SPELLED: Final = ("interval", "date", "timestamp", "timestamptz", "time", "timetz", "bytea")
_SPELLINGS: Final = frozenset((*_SPELLED, *(f"_{name}" for name in _SPELLED)))


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived table.

    Args:
        columns: Names of its columns, hidden ones left out.
        text: Those whose values are text.
        rows: Its rows, Python values.
    """

    columns: tuple[str, ...]
    text: frozenset[str]
    rows: Sequence[Sequence[Any]]


class _Type(NamedTuple):
    oid: int
    name: str
    ddl: str
    category: str


def final_rows(conninfo: Mapping[str, Any], query: str) -> list[tuple[str | None, ...]]:
    """What the source itself holds now."""
    with canonical_session(conninfo) as connection:
        return connection.execute(query.encode()).fetchall()


def printed(
    conninfo: Mapping[str, Any], table: TableId, query: str, derived: Derived
) -> list[tuple[str | None, ...]]:
    """The derived table's rows as the server prints them.

    Args:
        conninfo: Of the source's database.
        table: The source's table.
        query: The case's query of it.
        derived: The derived table.

    Raises:
        CaseProblem: The server does not take a derived value, or prints it in another way.
    """
    with _undone(conninfo) as connection:
        types = _types(connection, table)
        columns = [name for name in derived.columns if name in types]
        place = sql.Identifier(*table)
        if types:
            connection.execute(
                sql.SQL("alter table {} rename to {}").format(place, sql.Identifier(_AWAY))
            )
        fields = [sql.SQL("{} int").format(sql.Identifier(_NUMBER))]
        fields += [
            sql.SQL("{} {}").format(sql.Identifier(c), sql.SQL(types[c].ddl)) for c in columns
        ]
        connection.execute(
            sql.SQL("create table {} ({})").format(place, sql.SQL(", ").join(fields))
        )
        indexes = [derived.columns.index(name) for name in columns]
        rows = [[rendered(row[i]) for i in indexes] for row in derived.rows]
        _copy(connection, place, [_NUMBER, *columns], ([str(n), *r] for n, r in enumerate(rows)))
        _check_text(connection, place, columns, types, derived, rows)
        return connection.execute(query.encode()).fetchall()


def printed_values(
    conninfo: Mapping[str, Any], type_oids: Sequence[int], rows: Sequence[Sequence[Any]]
) -> list[tuple[str | None, ...]]:
    """Values of the given types as the server's output functions print them, in order.

    Args:
        conninfo: Of the source's database.
        type_oids: Of the columns.
        rows: Values as Python has them.

    Raises:
        CaseProblem: The server does not take a value.
    """
    if not rows:
        return []
    with _undone(conninfo) as connection:
        fields = [sql.SQL("{} int").format(sql.Identifier(_NUMBER))]
        names = [f"c{i}" for i in range(len(type_oids))]
        for name, oid in zip(names, type_oids, strict=True):
            ddl = _base_type(connection, oid).ddl
            fields.append(sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(ddl)))
        connection.execute(
            sql.SQL("create temp table cdc_cases_values ({})").format(sql.SQL(", ").join(fields))
        )
        texts = ([str(n), *(rendered(value) for value in row)] for n, row in enumerate(rows))
        place = sql.Identifier("cdc_cases_values")
        _copy(connection, place, [_NUMBER, *names], texts)
        shown = [_output(sql.Identifier(name)) for name in names]
        return connection.execute(
            sql.SQL("select {} from {} order by {}").format(
                sql.SQL(", ").join(shown), place, sql.Identifier(_NUMBER)
            )
        ).fetchall()


def rendered(value: Any) -> str | None:
    """A derived value in a text that the server takes for exactly this value."""
    match value:
        case None | str():
            return value
        case bool():
            return "t" if value else "f"
        case int() | float():
            return repr(value)
        case Decimal():
            return f"{value:f}"
        case dt.datetime():
            return value.isoformat(sep=" ")
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return r"\x" + value.hex()
    raise CaseProblem(f"the runner cannot compare a derived value of {type(value).__name__}")


# --- inside ---


@contextmanager
def _undone(conninfo: Mapping[str, Any]) -> Iterator[psycopg.Connection[Any]]:
    with canonical_session(conninfo) as connection:
        # Event triggers are the application's.
        connection.execute("set local session_replication_role = replica")
        try:
            yield connection
        except psycopg.Error as error:
            said = error.diag.message_primary or str(error)
            where = (error.diag.context or "").split("\n")[0]
            raise CaseProblem(f"the server does not take derived values: {said} {where}") from None
        finally:
            connection.rollback()


def _copy(
    connection: psycopg.Connection[Any],
    place: sql.Identifier,
    columns: Sequence[str],
    rows: Iterator[list[str | None]],
) -> None:
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("copy {} ({}) from stdin").format(place, listed)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def _check_text(
    connection: psycopg.Connection[Any],
    place: sql.Identifier,
    columns: Sequence[str],
    types: Mapping[str, _Type],
    derived: Derived,
    rows: Sequence[Sequence[str | None]],
) -> None:
    """Derived text is what the server prints, where that does not follow from the type."""
    checked = [
        name
        for name in columns
        if name in derived.text
        and types[name].category != "S"
        and types[name].name not in _SPELLINGS
        # The product's intervals are ISO 8601, within other values too.
        and not _holds_intervals(connection, types[name].oid)
    ]
    if not checked or not rows:
        return
    # By position: a user's column may have any name.
    raw = {name: sql.Identifier(f"c{i}") for i, name in enumerate(checked)}
    fields = [sql.SQL("{} text").format(field) for field in raw.values()]
    fields.append(sql.SQL("{} int").format(sql.Identifier(_NUMBER)))
    connection.execute(
        sql.SQL("create temp table cdc_cases_raw ({})").format(sql.SQL(", ").join(fields))
    )
    indexes = [columns.index(name) for name in checked]
    _copy(
        connection,
        sql.Identifier("cdc_cases_raw"),
        [*(f"c{i}" for i in range(len(checked))), _NUMBER],
        ([*(row[i] for i in indexes), str(n)] for n, row in enumerate(rows)),
    )
    counts = [
        sql.SQL("count(*) filter (where {} is distinct from r.{})").format(
            _output(sql.SQL("t.{}").format(sql.Identifier(name))), field
        )
        for name, field in raw.items()
    ]
    found = connection.execute(
        sql.SQL("select {} from {} t join cdc_cases_raw r using ({})").format(
            sql.SQL(", ").join(counts), place, sql.Identifier(_NUMBER)
        )
    ).fetchone()
    assert found is not None
    bad = [f"{name} ({count})" for name, count in zip(checked, found, strict=True) if count]
    if bad:
        raise CaseProblem(f"derived text is not as the server prints it: {', '.join(bad)}")


def _output(value: sql.Composable) -> sql.Composed:
    """What the type's output function says; a cast to text is another thing for some types."""
    return sql.SQL("case when num_nulls({0}) = 0 then format('%s', {0}) end").format(value)


def _types(connection: psycopg.Connection[Any], table: TableId) -> dict[str, _Type]:
    """Base types of a table's columns by name; empty when there is no such table."""
    found = connection.execute(
        "select a.attname::text, a.atttypid::bigint from pg_attribute a"
        " join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = %s and c.relname = %s and a.attnum > 0 and not a.attisdropped",
        tuple(table),
    ).fetchall()
    return {name: _base_type(connection, oid) for name, oid in found}


def _base_type(connection: psycopg.Connection[Any], oid: int) -> _Type:
    """A type below its domains, without length or scale."""
    row = connection.execute(
        "with recursive base as (select oid, typbasetype, typname, typcategory from pg_type"
        " where oid = %s::bigint::oid union all"
        " select t.oid, t.typbasetype, t.typname, t.typcategory from pg_type t"
        " join base b on t.oid = b.typbasetype)"
        # With -1 the name never implies a length, as "character" would.
        " select oid::bigint, typname::text, format_type(oid, -1), typcategory::text from base"
        " where typbasetype = 0",
        (oid,),
    ).fetchone()
    if row is None:
        raise CaseProblem(f"the source has no type {oid}")
    return _Type(*row)


def _holds_intervals(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Whether a value of a type has intervals in it: as elements, fields or bounds."""
    row = connection.execute(
        "with recursive held (oid) as (select %s::bigint::oid union"
        " select p.oid from held h cross join lateral ("
        " select typelem from pg_type t where t.oid = h.oid union all"
        " select typbasetype from pg_type t where t.oid = h.oid union all"
        " select rngsubtype from pg_range where h.oid in (rngtypid, rngmultitypid) union all"
        " select a.atttypid from pg_type t join pg_attribute a on a.attrelid = t.typrelid"
        " where t.oid = h.oid and a.attnum > 0 and not a.attisdropped) p (oid)"
        " where p.oid <> 0)"
        " select 'interval'::regtype in (select oid from held)",
        (oid,),
    ).fetchone()
    return row is not None and row[0]
