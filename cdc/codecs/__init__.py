"""Type codecs: Postgres text → JSON → exact Python and Delta values. Pure.

``table`` is the one table; ``to_json``, ``to_text`` and ``arrays`` are its functions;
``replica`` says what a column is in Delta. docs/types.md is made from it.
"""

from cdc.codecs import to_json, to_text
from cdc.codecs.replica import arrow_type, decimal_form, delta_type, from_json
from cdc.codecs.table import (
    BIT,
    BOOL,
    BPCHAR,
    BYTEA,
    CODECS,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    OID,
    OTHER,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    UUID,
    VARBIT,
    VARCHAR,
    FromJson,
    TypeCodec,
    codec_of,
    is_simple_key,
    literal_form,
)
from cdc.codecs.to_json import BadText, JsonEncoder
from cdc.codecs.to_text import same

__all__ = [
    "BIT", "BOOL", "BPCHAR", "BYTEA", "CODECS", "DATE", "FLOAT4", "FLOAT8", "INT2", "INT4",
    "INT8", "INTERVAL", "JSON", "JSONB", "NUMERIC", "OID", "OTHER", "TEXT", "TIME", "TIMESTAMP",
    "TIMESTAMPTZ", "TIMETZ", "UUID", "VARBIT", "VARCHAR", "BadText", "FromJson", "JsonEncoder",
    "TypeCodec", "arrow_type", "codec_of", "decimal_form", "delta_type", "from_json",
    "is_simple_key", "literal_form", "same", "to_json", "to_text",
]  # fmt: skip
