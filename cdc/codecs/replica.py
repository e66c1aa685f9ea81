"""What a column is in a replica: its Delta type, and the exact value of its JSON. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from cdc.codecs import policies
from cdc.codecs.table import NUMERIC, FromJson, codec_of
from cdc.codecs.to_text import same
from cdc.errors import LakeError
from cdc.schema import ARRAY_ERROR, CLAMP, NULL, STRING, Column

_MAX_DECIMAL_PRECISION = 38
#: numeric's typmod: precision and scale in an offset of its own; the scale has 11 bits.
_TYPMOD_OFFSET = 4


#: Of ``value_out_of_range``.
OUT_OF_RANGE_REMEDY = (
    "set types in cdc.yaml (string keeps every value as text, clamp and null replace what the "
    "Delta type cannot hold), then cdc rebuild the table; or change the value at the source"
)


def _to_decimal(value: str) -> Decimal:
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("not a finite number")
    return number


def decimal_form(column: Column) -> tuple[int, int] | None:
    """Precision and scale of a numeric that Delta's DECIMAL holds, else None."""
    wire = column.resolved
    if wire.array or wire.oid != NUMERIC or wire.typmod < _TYPMOD_OFFSET:
        return None
    if column.policy == STRING:
        return None
    bits = wire.typmod - _TYPMOD_OFFSET
    precision, scale = bits >> 16 & 0xFFFF, bits & 0x7FF
    if precision > _MAX_DECIMAL_PRECISION or scale > precision:
        # A negative scale looks like a large one.
        return None
    return precision, scale


def delta_type(column: Column) -> str:
    """Spark DDL of the column in a replica: exact, else STRING."""
    element = column.element
    if element is not None:
        return f"ARRAY<{delta_type(element)}>"
    decimal = decimal_form(column)
    if decimal is not None:
        return f"DECIMAL({decimal[0]},{decimal[1]})"
    return "STRING" if column.policy == STRING else codec_of(column).delta


def bends(column: Column) -> bool:
    """Whether values that the column's Delta type cannot hold are replaced by others."""
    if column.element is not None:
        return column.policy != ARRAY_ERROR
    limited = decimal_form(column) is not None or policies.ends(column) is not None
    return limited and column.policy in (CLAMP, NULL)


def is_out_of_range(column: Column, value: Any) -> bool:
    """Whether a JSON value of a column that ``bends`` is replaced by another."""
    element = column.element
    if element is None:
        return policies.is_out_of_range(column, value)
    if not _fits_array(value):
        return True
    return bends(element) and any(
        part is not None and policies.is_out_of_range(element, part) for part in value
    )


def _fits_array(value: Any) -> bool:
    """Whether an array has one dimension that begins at 1: an ARRAY knows no others."""
    # Another lower bound makes it a text. All elements of an array have the same dimensions.
    return isinstance(value, list) and not (value and isinstance(value[0], list))


def _to_array(column: Column, element: Column) -> FromJson:
    convert = from_json(element)

    def of(value: Any) -> Any:
        if _fits_array(value):
            return [None if part is None else convert(part) for part in value]
        if column.policy == ARRAY_ERROR:
            raise ValueError("not an array of one dimension from 1")
        # Nothing that an ARRAY holds is nearest to it.
        return None

    return of


def from_json(column: Column) -> FromJson:
    """Converter of the envelope's value (never None) to the value in the replica.

    What the Delta type cannot hold (infinity, BC, years above 9999, NaN in a DECIMAL, in an
    ARRAY bounds and more dimensions) is replaced by the column's policy. Otherwise the
    converter raises LakeError ``value_out_of_range``, naming the column.
    """
    codec, element = codec_of(column), column.element
    convert = codec.from_json if decimal_form(column) is None else _to_decimal
    if element is not None:
        convert = _to_array(column, element)
    elif column.policy == STRING:
        convert = codec.to_text
    elif bends(column):
        convert = policies.in_range(column, convert)
    if convert is same:
        return same

    def checked(value: Any) -> Any:
        try:
            return convert(value)
        except (ValueError, TypeError, ArithmeticError, AttributeError):
            raise LakeError(
                "value_out_of_range",
                f"column {column.name} ({column.type}) holds a value that Delta type "
                f"{delta_type(column)} cannot hold",
                remedy=OUT_OF_RANGE_REMEDY,
            ) from None

    return checked


def arrow_type(column: Column) -> Any:
    """The pyarrow type that matches ``delta_type``."""
    import pyarrow as pa  # slow to import: not for the capture process

    element = column.element
    if element is not None:
        return pa.list_(arrow_type(element))
    decimal = decimal_form(column)
    if decimal is not None:
        return pa.decimal128(*decimal)
    return {
        "BOOLEAN": pa.bool_(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    }[delta_type(column)]
