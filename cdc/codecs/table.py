"""The one table of types: OID of a base type → how its values travel. Pure.

Columns come here by ``codec_of``, after the catalog has looked through domains and arrays
(``cdc.schema.WireType``). Types that are not in the table (enums, composites, ranges, those of
extensions) travel as Postgres prints them.
"""

from __future__ import annotations

import binascii
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cdc.codecs import to_json, to_text
from cdc.codecs.arrays import array_encoder, array_text
from cdc.codecs.to_json import JsonEncoder
from cdc.codecs.to_text import TextOf, same
from cdc.schema import Column, WireType

FromJson = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class TypeCodec:
    """How one Postgres type travels.

    Args:
        name: Postgres' name of the type.
        to_json: Postgres text (bytes) to a JSON fragment (bytes); raises BadText.
        delta: Spark DDL of the Delta type, for columns without a type of their own.
        from_json: The envelope's JSON value to the exact Python value; raises ValueError
            where Delta's type cannot hold it.
        to_text: The envelope's JSON value to Postgres' text, the inverse of ``to_json``.
        toastable: Whether a value can be stored out of line, so that an update may come
            without it.
    """

    name: str
    to_json: JsonEncoder
    delta: str = "STRING"
    from_json: FromJson = same
    to_text: TextOf = same
    toastable: bool = True


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


BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, JSON = 16, 17, 20, 21, 23, 25, 26, 114
FLOAT4, FLOAT8, BPCHAR, VARCHAR, DATE = 700, 701, 1042, 1043, 1082
TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID, JSONB = 1114, 1184, 1700, 2950, 3802
TIME, INTERVAL, TIMETZ, BIT, VARBIT = 1083, 1186, 1266, 1560, 1562


def _fixed(
    name: str,
    encoder: JsonEncoder,
    delta: str = "STRING",
    from_json: FromJson = same,
    text_of: TextOf = same,
) -> TypeCodec:
    """A type of a fixed length, whose values are never stored out of line."""
    return TypeCodec(name, encoder, delta, from_json, text_of, toastable=False)


CODECS: dict[int, TypeCodec] = {
    BOOL: _fixed("boolean", to_json.boolean, "BOOLEAN", text_of=to_text.boolean),
    INT2: _fixed("smallint", to_json.plain, "SMALLINT", text_of=to_text.integer),
    INT4: _fixed("integer", to_json.plain, "INT", text_of=to_text.integer),
    INT8: _fixed("bigint", to_json.plain, "BIGINT", text_of=to_text.integer),
    OID: _fixed("oid", to_json.plain, "BIGINT", text_of=to_text.integer),
    FLOAT4: _fixed("real", to_json.floating, "FLOAT", _to_float, to_text.real),
    FLOAT8: _fixed("double precision", to_json.floating, "DOUBLE", _to_float, to_text.double),
    NUMERIC: TypeCodec("numeric", to_json.quoted),
    TEXT: TypeCodec("text", to_json.text),
    VARCHAR: TypeCodec("character varying", to_json.text),
    BPCHAR: TypeCodec("character", to_json.text),
    BYTEA: TypeCodec("bytea", to_json.binary, "BINARY", _to_bytes, to_text.binary),
    DATE: _fixed("date", to_json.quoted, "DATE", _to_date),
    TIME: _fixed("time", to_json.quoted),
    TIMETZ: _fixed("timetz", to_json.quoted),
    TIMESTAMP: _fixed(
        "timestamp", to_json.timestamp, "TIMESTAMP_NTZ", _to_timestamp, to_text.timestamp
    ),
    TIMESTAMPTZ: _fixed(
        "timestamptz", to_json.timestamptz, "TIMESTAMP", _to_timestamp, to_text.timestamp
    ),
    INTERVAL: _fixed("interval", to_json.quoted),
    BIT: TypeCodec("bit", to_json.quoted),
    VARBIT: TypeCodec("bit varying", to_json.quoted),
    UUID: _fixed("uuid", to_json.quoted),
    JSON: TypeCodec("json", to_json.text),
    JSONB: TypeCodec("jsonb", to_json.text),
}
#: Of every other type.
OTHER = TypeCodec("other", to_json.text)

#: Keys of one column of these types are compared as they are; others need ``_cdc_key``.
_SIMPLE_KEY_TYPES = frozenset((INT2, INT4, INT8, TEXT, VARCHAR, UUID, DATE))


def codec_of(column: Column) -> TypeCodec:
    """How the column's values travel."""
    return _codec(column.resolved)


@lru_cache(maxsize=1024)
def _codec(wire: WireType) -> TypeCodec:
    element = CODECS.get(wire.oid, OTHER)
    if not wire.array:
        return element
    return TypeCodec(
        f"{element.name}[]",
        array_encoder(element.to_json, wire.delimiter),
        "STRING",
        text_of := array_text(element.to_text, wire.delimiter),
        text_of,
    )


def is_simple_key(column: Column) -> bool:
    """Whether values of a key of this column alone are compared as they are."""
    wire = column.resolved
    return not wire.array and wire.oid in _SIMPLE_KEY_TYPES


def literal_form(column: Column) -> bytes | None:
    """A template for types whose JSON is their text, plain or in quotes; None for the others."""
    encoder = codec_of(column).to_json
    if encoder is to_json.plain:
        return b"%b"
    return b'"%b"' if encoder is to_json.quoted else None
