"""The derived table's side, in DuckDB: the replica with the log's tail laid over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cdc.codecs import decimal_form, delta_type
from cdc.errors import LakeError
from cdc.query.overlay import INTERNAL, TableOverlay, quoted
from cdc.schema import Column, TableSchema
from cdc.verify.forms import (
    ESCAPE,
    KEY_SHIFTS,
    NULL_MARK,
    RANGE_DIGITS,
    RANGES,
    SEPARATOR,
    SUM_DIGITS,
    Form,
    compared,
    digest,
    form_of,
    has_integer_key,
    holds_signs,
    range_of,
)
from cdc.verify.result import CHANGED, DUPLICATED, EXTRA, MISSING
from cdc.verify.sides import Key, Row, Sum

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from cdc.query.source_view import TablePlan
    from cdc.query.tail import Tail

_THEIRS: Final = f"{INTERNAL}.main.source_rows"


def _literal(text: str) -> str:
    return " || ".join(f"chr({ord(sign)})" for sign in text)


_ESCAPE, _SEPARATOR, _NULL_MARK = map(_literal, (ESCAPE, SEPARATOR, NULL_MARK))


class DerivedTable:
    """One table as of the plan's frontier.

    Args:
        connection: As from ``open_connection``; of this table alone.
        plan: Of the table.
        tail: Of the plan's range.

    Raises:
        LogError, LakeError, QueryError: As ``TableOverlay``.
    """

    def __init__(self, connection: DuckDBPyConnection, plan: TablePlan, tail: Tail) -> None:
        self._con = connection
        self._name = str(plan.name)
        self._schema = schema = compared(plan.schema)
        TableOverlay(connection, 0, plan.name, plan.schema, plan.replica).create(tail)
        self._from = quoted(plan.name.source, *plan.name.id)
        _make_bit_functions(connection)
        key = [schema.column(name) for name in schema.key]
        self._key = [_value(column) for column in key]
        self._key_digest = f"md5({_joined(key)})"
        self._range = _range(schema, self._key_digest)
        self._digest = f"md5({_joined(schema.columns)})"

    def sums(self) -> dict[int, Sum]:
        """As ``Side.sums``."""
        number = f"CAST('0x' || {self._digest}[1:{SUM_DIGITS}] AS BIGINT)"
        with self._reading():
            found = self._con.execute(
                f"SELECT {self._range}, count(*), sum({number}) FROM {self._from} GROUP BY 1"  # noqa: S608
            ).fetchall()
        return {part: Sum(rows, int(total)) for part, rows, total in found}

    def values(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """As ``Side.values``."""
        parts = sorted({range_of(self._schema, key) for key in keys})
        columns = [_value(c) for c in self._schema.columns]
        with self._reading():
            found = self._con.execute(
                f"SELECT {', '.join([*self._key, *columns])} FROM {self._from}"  # noqa: S608
                f" WHERE {self._range} IN ({', '.join(map(str, parts))})"
                f" AND {self._key_digest} IN (SELECT unnest($1::VARCHAR[]))",
                [[digest(key) for key in keys]],
            ).fetchall()
        width = len(self._key)
        return {row[:width]: row[width:] for row in found}

    def against(
        self, theirs: Iterable[list[tuple[str | None, ...]]], ranges: Sequence[int], limit: int
    ) -> list[tuple[Key, str]]:
        """Compare with the source's rows of the same ranges, key by key.

        Args:
            theirs: As ``Side.rows`` gives them; any number.
            ranges: Which ones.
            limit: Stop after so many keys.

        Returns:
            Keys and what is wrong with them, in the key's order.
        """
        keys = [f"k{i}" for i in range(len(self._key))]
        named = ", ".join(keys)
        declared = ", ".join(f"{name} VARCHAR" for name in (*keys, "digest"))
        grouped = "count(*) AS n, min(digest) AS low, max(digest) AS high"
        order = "k0::BIGINT" if has_integer_key(self._schema) else named
        # Without a key, values of the row that stands for it may be NULL.
        either = ", ".join(f"coalesce(ours.{key}, theirs.{key}) AS {key}" for key in keys)
        same = " AND ".join(f"ours.{key} IS NOT DISTINCT FROM theirs.{key}" for key in keys)
        with self._reading():
            self._con.execute(f"CREATE OR REPLACE TABLE {_THEIRS} ({declared})")
            appender = self._con.appender(_THEIRS)
            for batch in theirs:
                appender.append_rows(batch)
            appender.flush()
            found = self._con.execute(
                f"WITH ours AS (SELECT {named}, {grouped}"  # noqa: S608
                f"  FROM ({self._rows(ranges)}) AS r({named}, digest) GROUP BY ALL),"
                f" theirs AS (SELECT {named}, {grouped} FROM {_THEIRS} GROUP BY ALL)"
                f" SELECT * FROM (SELECT {either}, CASE WHEN ours.n IS NULL OR ours.n < theirs.n"
                f"  THEN '{MISSING}' WHEN theirs.n IS NULL THEN '{EXTRA}'"
                f"  WHEN ours.n > theirs.n THEN '{DUPLICATED}' ELSE '{CHANGED}' END"
                f" FROM ours FULL JOIN theirs ON {same}"
                " WHERE (ours.n, ours.low, ours.high)"
                "  IS DISTINCT FROM (theirs.n, theirs.low, theirs.high))"
                f" ORDER BY {order} LIMIT {limit}"
            ).fetchall()
        return [(row[:-1], row[-1]) for row in found]

    # --- inside ---

    def _rows(self, ranges: Sequence[int]) -> str:
        return (
            f"SELECT {', '.join([*self._key, self._digest])} FROM {self._from}"  # noqa: S608
            f" WHERE {self._range} IN ({', '.join(map(str, ranges))})"
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as problem:
            # Its message can hold a value.
            raise LakeError(
                "replica_unreadable",
                f"the replica's files cannot be read ({type(problem).__name__})",
                table=self._name,
                remedy=f"cdc rebuild {self._name} --from-offset 0",
            ) from None


def _joined(columns: Sequence[Column]) -> str:
    """SQL of the canonical text of columns."""
    return f"concat_ws({_SEPARATOR}, {', '.join(map(_element, columns))})"


def _element(column: Column, name: str | None = None) -> str:
    value = _value(column, name)
    if holds_signs(column):
        value = f"replace({value}, {_ESCAPE}, {_ESCAPE} || {_ESCAPE})"
    return f"coalesce({value}, {_NULL_MARK})"


def _range(schema: TableSchema, key_digest: str) -> str:
    if not has_integer_key(schema):
        return f"CAST('0x' || {key_digest}[1:{RANGE_DIGITS}] AS INTEGER)"
    number = folded = f"{quoted(schema.column(schema.key[0]).target)}::BIGINT"
    for shift in KEY_SHIFTS:
        folded = f"xor({folded}, {number} >> {shift})"
    return f"({folded} & {RANGES - 1})"


def _value(column: Column, name: str | None = None) -> str:
    """SQL of a value's text; ``name``: of the value, if it is not that of the column."""
    name, form = name or quoted(column.target), form_of(column)
    if column.element is not None:
        parts = f"list_transform({name}, lambda e: {_element(column.element, 'e')})"
        # Each element with its end, so that none and an empty one differ.
        text = f"array_to_string(list_append({parts}, ''), {_SEPARATOR})"
        return f"CASE WHEN {name} IS NOT NULL THEN {text} END"
    if form is Form.HEX:
        return f"lower(hex({name}))"
    if form is not Form.TEXT:
        function, digits = _BITS[form]
        bits = f"{function}({name})"
        if form is Form.REAL:
            # A negative number's digits would be those of sixty-four bits.
            bits = f"{bits}::BIGINT & {0xFFFFFFFF}"
        hexadecimal = f"lpad(lower(to_hex({bits})), {digits}, '0')"
        return f"CASE WHEN isnan({name}) THEN 'NaN' ELSE {hexadecimal} END"
    if delta_type(column) == "STRING":
        return name
    text = f"CAST({name} AS VARCHAR)"
    decimal = decimal_form(column)
    if decimal is not None and decimal[0] == decimal[1]:
        # DuckDB leaves the zero before the point out where no digit can stand there.
        return rf"regexp_replace({text}, '^(-?)\.', '\10.')"
    return text


_BITS: Final = {Form.REAL: ("cdc_real_bits", 8), Form.DOUBLE: ("cdc_double_bits", 16)}


def _make_bit_functions(connection: DuckDBPyConnection) -> None:
    import pyarrow as pa
    from duckdb.func import FunctionNullHandling, PythonUDFType

    def bits(kind: Any) -> Callable[[Any], Any]:
        def convert(values: Any) -> Any:
            return pa.chunked_array([chunk.view(kind) for chunk in values.chunks], kind)

        return convert

    for form, source, target, kind in (
        (Form.REAL, "FLOAT", "INTEGER", pa.int32()),
        (Form.DOUBLE, "DOUBLE", "BIGINT", pa.int64()),
    ):
        connection.create_function(
            _BITS[form][0],
            bits(kind),
            [source],
            target,
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )
