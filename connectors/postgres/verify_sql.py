"""SQL of ``cdc.verify.forms`` on the source: the canonical text of values, rows and keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc import codecs
from cdc.codecs.policies import ends
from cdc.names import quote_ident
from cdc.schema import CLAMP, Column, TableSchema
from cdc.verify.forms import (
    ESCAPE,
    KEY_SHIFTS,
    NULL_MARK,
    RANGE_DIGITS,
    RANGES,
    SEPARATOR,
    SUM_DIGITS,
    Form,
    form_of,
    has_integer_key,
    holds_signs,
)

# Their cast to text gives their own text, which holds nothing to escape.
_PLAIN: Final = frozenset(
    (
        codecs.INT2,
        codecs.INT4,
        codecs.INT8,
        codecs.OID,
        codecs.NUMERIC,
        codecs.DATE,
        codecs.TIME,
        codecs.TIMETZ,
        codecs.TIMESTAMP,
        codecs.TIMESTAMPTZ,
        codecs.INTERVAL,
        codecs.UUID,
    )
)
_TEXTS: Final = frozenset((codecs.TEXT, codecs.VARCHAR, codecs.JSON, codecs.JSONB))
#: A function takes a hundred arguments at most.
_ARGUMENTS: Final = 90


def _literal(text: str) -> str:
    return " || ".join(f"chr({ord(sign)})" for sign in text)


_ESCAPE, _SEPARATOR, _NULL_MARK = map(_literal, (ESCAPE, SEPARATOR, NULL_MARK))


def value_text(column: Column, name: str | None = None) -> str:
    """A value's text, or that of what the column's policy puts in its place; NULL for no value.

    Args:
        column: What is read.
        name: SQL of the value, if it is not the column itself.
    """
    name, form, wire = name or quote_ident(column.name), form_of(column), column.resolved
    if column.element is not None:
        return _array_text(column.element, name)
    if form is Form.HEX:
        return f"encode({name}, 'hex')"
    if form is not Form.TEXT:
        send = "float4send" if form is Form.REAL else "float8send"
        return f"CASE WHEN {name} = 'NaN' THEN 'NaN' ELSE encode({send}({name}), 'hex') END"
    if codecs.delta_type(column) == "BOOLEAN":
        return f"{name}::text"
    if wire.array or wire.oid not in _PLAIN | _TEXTS:
        # Not a cast: those of character(n), inet and others do not give the type's own text.
        # And not IS NULL, which is true for a composite value whose fields are all NULL.
        return f"CASE WHEN num_nulls({name}) = 0 THEN format('%s', {name}) END"
    return _in_place(column, name) if codecs.bends(column) else f"{name}::text"


def _array_text(element: Column, name: str) -> str:
    """Of an ARRAY: each element with its end, so that none and an empty one differ."""
    # By subscripts: unnest makes columns out of composite values. Each name with its table's,
    # since the column may be called like any of them.
    parts = (
        f"SELECT n.n, (a.a)[n.n] AS e FROM (SELECT {name} AS a) AS a,"  # noqa: S608
        " generate_subscripts(a.a, 1) AS n(n)"
    )
    text = _element(element, "part.e")
    joined = f"string_agg({text} || {_SEPARATOR}, '' ORDER BY part.n)"
    fits = f"array_ndims({name}) = 1 AND array_lower({name}, 1) = 1"
    return (
        f"CASE WHEN cardinality({name}) = 0 THEN ''"  # noqa: S608
        f" WHEN {fits} THEN (SELECT {joined} FROM ({parts}) AS part) END"
    )


def _in_place(column: Column, name: str) -> str:
    """A date, timestamp or DECIMAL whose policy is to replace what its Delta type cannot hold."""
    limits = ends(column)
    if limits is None:
        return f"CASE WHEN {name} <> 'NaN' THEN {name}::text END"
    low, high = "NULL", "NULL"
    if column.policy == CLAMP:
        low, high = (f"'{str(end).replace('+00:00', '+00')}'" for end in limits)
    # Infinity is above every year, and BC below the first.
    return (
        f"CASE WHEN {name} < '0001-01-01' THEN {low} WHEN {name} >= '10000-01-01' THEN {high}"
        f" ELSE {name}::text END"
    )


def row_digest(columns: Sequence[Column], encoding: str) -> str:
    """md5 of the columns' canonical text.

    Args:
        columns: In their order.
        encoding: Of the database.
    """
    elements = [_element(column) for column in columns]
    while len(elements) > _ARGUMENTS:
        elements = [
            _joined(elements[i : i + _ARGUMENTS]) for i in range(0, len(elements), _ARGUMENTS)
        ]
    text = _joined(elements)
    # What is stored in SQL_ASCII is UTF-8, or would not have been captured.
    return (
        f"md5({text})" if encoding in ("UTF8", "SQL_ASCII") else f"md5(convert_to({text}, 'UTF8'))"
    )


def row_number(columns: Sequence[Column], encoding: str) -> str:
    """The number of a row that is summed up, a bigint."""
    bits = 4 * SUM_DIGITS
    return f"('x' || substr({row_digest(columns, encoding)}, 1, {SUM_DIGITS}))::bit({bits})::bigint"


def range_number(schema: TableSchema, encoding: str) -> str:
    """The range of a row, an integer."""
    if not has_integer_key(schema):
        key = row_digest([schema.column(name) for name in schema.key], encoding)
        return f"('x' || substr({key}, 1, {RANGE_DIGITS}))::bit({4 * RANGE_DIGITS})::int"
    number = folded = f"{quote_ident(schema.key[0])}::bigint"
    for shift in KEY_SHIFTS:
        folded = f"({folded} # ({number} >> {shift}))"
    return f"({folded} & {RANGES - 1})::int"


def _element(column: Column, name: str | None = None) -> str:
    text, wire = value_text(column, name), column.resolved
    if holds_signs(column) and (wire.array or wire.oid not in _PLAIN):
        text = f"replace({text}, {_ESCAPE}, {_ESCAPE} || {_ESCAPE})"
    return f"coalesce({text}, {_NULL_MARK})"


def _joined(elements: Sequence[str]) -> str:
    return f"concat_ws({_SEPARATOR}, {', '.join(elements)})"
