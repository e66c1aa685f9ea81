"""The DuckDB connection of one query: locked down, then one statement, exact values out."""

from __future__ import annotations

import datetime as dt
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import QueryError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Convert = Callable[[Any], Any]

_MEMORY_SHARE: Final = 0.5
# Types whose values Python gets exactly as they are.
_EXACT: Final = frozenset(
    (
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "UHUGEINT",
        "DOUBLE",
        "VARCHAR",
        "BLOB",
        "JSON",
        '"NULL"',
    )
)
_EXACT_DECIMAL = re.compile(r"DECIMAL\(\d+,\s*\d+\)")


@contextmanager
def open_connection() -> Iterator[DuckDBPyConnection]:
    """A fresh in-memory database with the catalog of our own tables; not locked yet."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="cdc-query-") as spill:
        connection = duckdb.connect(
            ":memory:",
            config={
                "allow_community_extensions": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "python_enable_replacements": "false",
                "memory_limit": f"{_memory_mib()}MiB",
                # Large sorts spill here; DuckDB's default is the working directory.
                "temp_directory": spill,
            },
        )
        try:
            # Dates and instants must not depend on the machine's time zone.
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("ATTACH ':memory:' AS _cdc")
            yield connection
        finally:
            connection.close()


def _memory_mib() -> int:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(256, int(pages * _MEMORY_SHARE) >> 20)


def lock(connection: DuckDBPyConnection, files: Iterable[str]) -> None:
    """Allow nothing outside of the database but reading ``files``; for good.

    The statement was checked before; this is the second wall.
    """
    names = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
    connection.execute(f"SET allowed_paths = [{names}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def run(
    connection: DuckDBPyConnection, sql: str
) -> tuple[tuple[str, ...], tuple[str, ...], list[tuple[Any, ...]]]:
    """Run a checked statement.

    Args:
        connection: Locked.
        sql: One SELECT, without semicolon.

    Returns:
        Column names, DuckDB's types, rows. Values are int, bool, float, Decimal, str, bytes,
        date, time, datetime (aware for instants), list, dict or None; what these cannot hold
        exactly (intervals, infinite dates, years above 9999) is DuckDB's text.

    Raises:
        QueryError: ``sql_failed`` with DuckDB's message, ``out_of_memory``.
    """
    import duckdb

    try:
        described = connection.execute(f"DESCRIBE {sql}").fetchall()
        names = tuple(str(row[0]) for row in described)
        types = tuple(str(row[1]) for row in described)
        plan = [_plan(f"c{i}", kind) for i, kind in enumerate(types)]
        select = ", ".join(expression for expression, _ in plan)
        aliases = ", ".join(f"c{i}" for i in range(len(names)))
        rows = connection.execute(
            f"SELECT {select} FROM (\n{sql}\n) AS result({aliases})"  # noqa: S608 - checked
        ).fetchall()
    except duckdb.OutOfMemoryException:
        raise QueryError(
            "out_of_memory",
            "the query needs more than half of the machine's memory",
            remedy="select fewer columns or rows",
        ) from None
    except duckdb.Error as problem:
        raise QueryError("sql_failed", _first_line(problem)) from None
    converters = [convert for _, convert in plan]
    if any(convert is not None for convert in converters):
        rows = [
            tuple(
                value if convert is None or value is None else convert(value)
                for value, convert in zip(row, converters, strict=True)
            )
            for row in rows
        ]
    return names, types, rows


def _first_line(problem: Exception) -> str:
    return str(problem).split("\n\nLINE", 1)[0].strip()


def _plan(name: str, kind: str) -> tuple[str, Convert | None]:
    """How to fetch a column exactly: SQL expression, and converter of what comes."""
    if kind in _EXACT or _EXACT_DECIMAL.fullmatch(kind):
        return name, None
    text = f"CAST({name} AS VARCHAR)"
    if kind.endswith("[]"):
        part, convert = _plan("part", kind[:-2])
        if convert is not None:
            return f"list_transform({name}, lambda part: {part})", _each(convert)
        # Of structs and maps DuckDB's text is taken, in lists too.
        return (name if part == "part" else text), None
    if kind == "FLOAT":
        # The shortest text that means this 4-byte value, as Postgres prints it.
        return text, float
    if kind == "DATE":
        return text, _or_text(dt.date.fromisoformat)
    if kind in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"):
        return text, _or_text(dt.datetime.fromisoformat)
    if kind == "TIMESTAMP WITH TIME ZONE":
        return text, _or_text(_instant)
    if kind == "TIME":
        return text, _or_text(dt.time.fromisoformat)
    return text, None


def _each(convert: Convert) -> Convert:
    def of(parts: list[Any]) -> Any:
        return [None if part is None else convert(part) for part in parts]

    return of


def _or_text(parse: Convert) -> Convert:
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            # infinity, BC, years above 9999, 24:00:00: Python has no value for them.
            return text

    return convert


def _instant(text: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(text)
    return value.astimezone(dt.UTC)
