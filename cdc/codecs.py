"""One table of type codecs: Postgres text → JSON → exact Python and Delta values. Pure.

Snapshot and stream use the same encoders, so both write equal bytes. The JSON forms are
pinned in docs/formats.md. Types that are not in the table are refused by name at start.
"""

from __future__ import annotations

import binascii
import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson

from cdc.errors import LakeError
from cdc.schema import Column

JsonEncoder = Callable[[bytes], bytes]
FromJson = Callable[[Any], Any]

_MAX_DECIMAL_PRECISION = 38
_NUMERIC_TYPE = re.compile(r"numeric\((\d+),(-?\d+)\)")
_FLOAT_WORDS = frozenset((b"NaN", b"Infinity", b"-Infinity"))


class BadText(ValueError):
    """A value's bytes are not valid text of its type; holds no value."""


# --- Postgres text → JSON ---------------------------------------------------------------


def _bool(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _integer(value: bytes) -> bytes:
    return value


def _float(value: bytes) -> bytes:
    if value in _FLOAT_WORDS:
        return b'"' + value + b'"'
    # JSON readers take -0 for the integer 0 and lose the sign.
    return b"-0.0" if value == b"-0" else value


def _quoted(value: bytes) -> bytes:
    """For types whose text never needs escaping in JSON."""
    return b'"' + value + b'"'


def _text(value: bytes) -> bytes:
    try:
        return orjson.dumps(value.decode())
    except UnicodeDecodeError:
        raise BadText("not valid UTF-8") from None


def _bytea(value: bytes) -> bytes:
    if value[:2] != b"\\x":
        raise BadText("bytea that is not in hex form")
    try:
        raw = binascii.unhexlify(value[2:])
    except binascii.Error:
        raise BadText("bytea that is not in hex form") from None
    return b'"' + binascii.b2a_base64(raw, newline=False) + b'"'


def _is_plain_timestamp(value: bytes) -> bool:
    """Neither infinity, nor BC, nor a year above 9999: those stay Postgres' own text."""
    return value[4:5] == b"-" and value[10:11] == b" " and not value.endswith(b"BC")


def _timestamp(value: bytes) -> bytes:
    # First the usual text: four digits of the year, six of the fraction.
    if len(value) == 26 and value[10] == 0x20 and value[-1] != 0x43:  # ' ', 'C' of BC
        return b'"%bT%b"' % (value[:10], value[11:])
    if not _is_plain_timestamp(value):
        return b'"' + value + b'"'
    return b'"' + value[:10] + b"T" + value[11:19] + b"." + value[20:].ljust(6, b"0") + b'"'


def _timestamptz(value: bytes) -> bytes:
    if len(value) == 29 and value[10] == 0x20 and value[26:] == b"+00":
        return b'"%bT%bZ"' % (value[:10], value[11:26])
    if not _is_plain_timestamp(value):
        return b'"' + value + b'"'
    if value[-3:] != b"+00":
        raise BadText("timestamptz that is not in UTC")
    fraction = value[20:-3].ljust(6, b"0")
    return b'"' + value[:10] + b"T" + value[11:19] + b"." + fraction + b'Z"'


# --- JSON → Python ----------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _to_float(value: Any) -> float:
    return float(value)


def _to_bytes(value: str) -> bytes:
    return binascii.a2b_base64(value)


def _to_date(value: str) -> dt.date:
    if len(value) != 10:
        raise ValueError("outside years 1 to 9999")
    return dt.date.fromisoformat(value)


def _to_timestamp(value: str) -> dt.datetime:
    if value[10:11] != "T":
        raise ValueError("outside years 1 to 9999")
    return dt.datetime.fromisoformat(value)


def _to_decimal(value: str) -> Decimal:
    number = Decimal(value)
    if not number.is_finite():
        raise ValueError("not a finite number")
    return number


# --- The table --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeCodec:
    """How one Postgres type travels.

    Args:
        name: Postgres' name of the type.
        to_json: Postgres text (bytes) to a JSON fragment (bytes); raises BadText.
        delta: Spark DDL of the Delta type, for columns without a type of their own.
        from_json: The envelope's JSON value to the exact Python value; raises ValueError
            where Delta's type cannot hold it.
        toastable: Whether a value can be stored out of line, so that an update may come
            without it.
    """

    name: str
    to_json: JsonEncoder
    delta: str
    from_json: FromJson
    toastable: bool = False


BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON = 16, 17, 20, 21, 23, 25, 114
FLOAT4, FLOAT8, BPCHAR, VARCHAR, DATE = 700, 701, 1042, 1043, 1082
TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID, JSONB = 1114, 1184, 1700, 2950, 3802

CODECS: dict[int, TypeCodec] = {
    BOOL: TypeCodec("boolean", _bool, "BOOLEAN", _same),
    INT2: TypeCodec("smallint", _integer, "SMALLINT", _same),
    INT4: TypeCodec("integer", _integer, "INT", _same),
    INT8: TypeCodec("bigint", _integer, "BIGINT", _same),
    FLOAT4: TypeCodec("real", _float, "FLOAT", _to_float),
    FLOAT8: TypeCodec("double precision", _float, "DOUBLE", _to_float),
    NUMERIC: TypeCodec("numeric", _quoted, "STRING", _same, toastable=True),
    TEXT: TypeCodec("text", _text, "STRING", _same, toastable=True),
    VARCHAR: TypeCodec("character varying", _text, "STRING", _same, toastable=True),
    BPCHAR: TypeCodec("character", _text, "STRING", _same, toastable=True),
    BYTEA: TypeCodec("bytea", _bytea, "BINARY", _to_bytes, toastable=True),
    DATE: TypeCodec("date", _quoted, "DATE", _to_date),
    TIMESTAMP: TypeCodec("timestamp", _timestamp, "TIMESTAMP_NTZ", _to_timestamp),
    TIMESTAMPTZ: TypeCodec("timestamptz", _timestamptz, "TIMESTAMP", _to_timestamp),
    UUID: TypeCodec("uuid", _quoted, "STRING", _same),
    JSON: TypeCodec("json", _text, "STRING", _same, toastable=True),
    JSONB: TypeCodec("jsonb", _text, "STRING", _same, toastable=True),
}

#: Keys of one column of these types are compared as they are; others need ``_cdc_key``.
SIMPLE_KEY_TYPES = frozenset((INT2, INT4, INT8, TEXT, VARCHAR, UUID, DATE))


def literal_form(type_oid: int) -> bytes | None:
    """A template for types whose JSON is their text, plain or in quotes; None for the others."""
    encoder = CODECS[type_oid].to_json
    if encoder is _integer:
        return b"%b"
    return b'"%b"' if encoder is _quoted else None


def is_supported(type_oid: int) -> bool:
    """Whether columns of this type can be captured."""
    return type_oid in CODECS


def json_encoder(type_oid: int) -> JsonEncoder:
    """Encoder of the type's Postgres text; raises KeyError for an unsupported type."""
    return CODECS[type_oid].to_json


def delta_type(column: Column) -> str:
    """Spark DDL of the column in a replica: exact, else STRING."""
    if column.type_oid == NUMERIC:
        match = _NUMERIC_TYPE.fullmatch(column.type)
        if match:
            precision, scale = int(match[1]), int(match[2])
            if precision <= _MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
                return f"DECIMAL({precision},{scale})"
    return CODECS[column.type_oid].delta


def from_json(column: Column) -> FromJson:
    """Converter of the envelope's value (never None) to the exact Python value.

    The converter raises LakeError ``value_out_of_range``, naming the column, for a value that
    the Delta type cannot hold (infinity, BC, years above 9999, NaN in a DECIMAL).
    """
    is_decimal = delta_type(column).startswith("DECIMAL")
    convert = _to_decimal if is_decimal else CODECS[column.type_oid].from_json
    if convert is _same:
        return _same

    def checked(value: Any) -> Any:
        try:
            return convert(value)
        except (ValueError, TypeError, ArithmeticError):
            raise LakeError(
                "value_out_of_range",
                f"column {column.name} ({column.type}) holds a value that Delta type "
                f"{delta_type(column)} cannot hold",
                remedy="change the value at the source (infinity, NaN, BC and years above 9999 "
                "have no exact form in this Delta type)",
            ) from None

    return checked


def arrow_type(column: Column) -> Any:
    """The pyarrow type that matches ``delta_type``."""
    import pyarrow as pa  # slow to import: not for the capture process

    ddl = delta_type(column)
    if ddl.startswith("DECIMAL"):
        precision, scale = ddl[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
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
    }[ddl]
