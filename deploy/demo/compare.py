"""Is a derived table what Postgres holds? Value by value, and the types as well.

Postgres is read by psycopg and parsed by Arrow, not by our codecs, so that an error in them
shows.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql

from cdc.query.result import QueryResult
from deploy.demo.data import DemoTable

#: Postgres' type to Arrow's, and to what DuckDB calls it.
_ARROW = {
    "text": pa.string(),
    "integer": pa.int32(),
    "double precision": pa.float64(),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_DUCKDB = {
    "text": "VARCHAR",
    "integer": "INTEGER",
    "double precision": "DOUBLE",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """How a derived table differs from Postgres, in keys.

    Args:
        missing: In Postgres only.
        extra: In the derived table only, or there more than once.
        changed: In both, with other values.
        columns: The derived table has other columns or types; then keys are not compared.
    """

    missing: int = 0
    extra: int = 0
    changed: int = 0
    columns: bool = False

    def __str__(self) -> str:
        if self.columns:
            return "its columns or their types are not those of Postgres"
        total = self.missing + self.extra + self.changed
        return (
            f"{total} {'key differs' if total == 1 else 'keys differ'} ({self.missing} missing, "
            f"{self.extra} too many, {self.changed} with other values)"
        )


def arrow_schema(table: DemoTable) -> pa.Schema:
    """The table's columns in Arrow's types."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in table.columns.items()])


def postgres_rows(conninfo: dict[str, Any], table: DemoTable) -> pa.Table:
    """What Postgres holds now."""
    statement = sql.SQL("copy {} to stdout (format csv)").format(sql.Identifier(table.name))
    text = io.BytesIO()
    with (
        psycopg.connect(**conninfo, options="-c TimeZone=UTC -c datestyle=ISO") as connection,
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        for block in copy:
            text.write(block)
    text.seek(0)
    schema = arrow_schema(table)
    if not text.getbuffer():
        return schema.empty_table()
    return arrow_csv.read_csv(
        text,
        read_options=arrow_csv.ReadOptions(column_names=schema.names),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict(zip(schema.names, schema.types, strict=True)),
            # NULL is an empty field, an empty string is quoted.
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def query_rows(result: QueryResult, table: DemoTable) -> pa.Table | None:
    """The answer to ``select *``; None when its columns or types are not the table's."""
    if result.columns != tuple(table.columns) or result.types != tuple(
        _DUCKDB[kind] for kind in table.columns.values()
    ):
        return None
    schema = arrow_schema(table)
    if not result.rows:
        return schema.empty_table()
    columns = [
        pa.array(values, kind)
        for values, kind in zip(zip(*result.rows, strict=True), schema.types, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def delta_rows(folder: str, table: DemoTable) -> pa.Table | None:
    """What any Delta reader finds (deltalake's own engine); None when the types differ."""
    names = ", ".join(f'"{name}"' for name in table.columns)
    found = pa.table(
        QueryBuilder()
        .register("t", DeltaTable(folder))
        .execute(f"select {names} from t")  # noqa: S608 - our own column names
        .read_all()
    )
    schema = arrow_schema(table)
    views = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    kinds = [views.get(kind, kind) for kind in found.schema.types]
    return found.cast(schema) if kinds == schema.types else None


def difference(expected: pa.Table, found: pa.Table | None, key: Sequence[str]) -> Difference | None:
    """None when both hold exactly the same rows."""
    if found is None:
        return Difference(columns=True)
    ours, theirs = _exact(expected, key), _exact(found, key)
    if ours.equals(theirs):
        return None
    return _count(ours, theirs, key)


def _exact(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Sorted by key; floats as their bits, for 0.0 is not -0.0."""
    columns = [
        pc.cast(column, pa.float64()).combine_chunks().view(pa.int64())
        if pa.types.is_floating(column.type)
        else column
        for column in table.columns
    ]
    made = pa.Table.from_arrays(columns, names=table.column_names)
    return made.sort_by([(name, "ascending") for name in key]).combine_chunks()


def _count(ours: pa.Table, theirs: pa.Table, key: Sequence[str]) -> Difference:
    at = [ours.column_names.index(name) for name in key]

    def rows(table: pa.Table) -> list[tuple[Any, ...]]:
        # Instants as numbers: comparing them needs no time zones.
        return list(
            zip(
                *(
                    (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                    for c in table.columns
                ),
                strict=True,
            )
        )

    expected = {tuple(row[i] for i in at): row for row in rows(ours)}
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    twice = 0
    for row in rows(theirs):
        held = tuple(row[i] for i in at)
        twice += held in found
        found[held] = row
    return Difference(
        missing=len(expected.keys() - found.keys()),
        extra=len(found.keys() - expected.keys()) + twice,
        changed=sum(1 for k, row in expected.items() if k in found and found[k] != row),
    )
