"""Made-up table schemas for tests."""

import re

from cdc import codecs
from cdc.position import Position
from cdc.schema import CLAMP, Column, TableSchema, WireType

#: Types of the tests: an enum, which no table of types knows, and a domain.
MOOD, PRICE = 16400, 16402
INT4S, TEXTS, FLOAT8S, BOXES = 1007, 1009, 1022, 1020

TYPE_TEXT = {
    codecs.BOOL: "boolean",
    codecs.INT2: "smallint",
    codecs.INT4: "integer",
    codecs.INT8: "bigint",
    codecs.FLOAT4: "real",
    codecs.FLOAT8: "double precision",
    codecs.NUMERIC: "numeric",
    codecs.TEXT: "text",
    codecs.VARCHAR: "character varying(40)",
    codecs.BPCHAR: "character(8)",
    codecs.BYTEA: "bytea",
    codecs.DATE: "date",
    codecs.TIMESTAMP: "timestamp without time zone",
    codecs.TIMESTAMPTZ: "timestamp with time zone",
    codecs.UUID: "uuid",
    codecs.JSON: "json",
    codecs.JSONB: "jsonb",
    codecs.OID: "oid",
    codecs.TIME: "time without time zone",
    codecs.TIMETZ: "time with time zone",
    codecs.INTERVAL: "interval",
    codecs.BIT: "bit(3)",
    codecs.VARBIT: "bit varying",
    MOOD: "mood",
    PRICE: "price",
    INT4S: "integer[]",
    TEXTS: "text[]",
    FLOAT8S: "double precision[]",
    BOXES: "box[]",
}


_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


def numeric_typmod(precision, scale):
    return (precision << 16 | scale & 0x7FF) + 4


#: What domains and arrays come to.
WIRES = {
    PRICE: WireType(codecs.NUMERIC, numeric_typmod(6, 2)),
    INT4S: WireType(codecs.INT4, -1, array=True),
    TEXTS: WireType(codecs.TEXT, -1, array=True),
    FLOAT8S: WireType(codecs.FLOAT8, -1, array=True),
    BOXES: WireType(603, -1, array=True, delimiter=";"),
}


def column(id, name, oid=codecs.TEXT, *, type=None, not_null=False, wire=None, policy=CLAMP):
    match = _NUMERIC.fullmatch(type or "")
    typmod = numeric_typmod(int(match[1]), int(match[2])) if match else -1
    text, wire = type or TYPE_TEXT[oid], wire or WIRES.get(oid)
    return Column(id, name, oid, typmod, text, not_null, wire=wire, policy=policy)


def table_schema(*columns, key=("id",), table="orders", version=1, load=1, identity="d", lsn=1):
    """A schema of (name, oid) pairs or Columns in schema public."""
    built = tuple(
        c if isinstance(c, Column) else column(i, c[0], c[1], not_null=c[0] in key)
        for i, c in enumerate(columns, 1)
    )
    return TableSchema(
        "public", table, load, version, 16385, identity, tuple(key), built, Position(0, lsn, 0)
    )


#: One column of every type in scope, and a text for each as Postgres prints it.
ALL_TYPES = {
    "b": (codecs.BOOL, b"t"),
    "i2": (codecs.INT2, b"-32768"),
    "id": (codecs.INT4, b"7"),
    "i8": (codecs.INT8, b"9223372036854775807"),
    "f4": (codecs.FLOAT4, b"0.1"),
    "f8": (codecs.FLOAT8, b"-1.7976931348623157e+308"),
    "n": (codecs.NUMERIC, b"12345678901234567890.000100"),
    "t": (codecs.TEXT, 'q"uote\\ \x01 \u2028 é 😀'.encode()),
    "v": (codecs.VARCHAR, b""),
    "c": (codecs.BPCHAR, b"ab      "),
    "y": (codecs.BYTEA, b"\\x00ff10"),
    "d": (codecs.DATE, b"2013-01-01"),
    "ts": (codecs.TIMESTAMP, b"2013-01-01 05:00:00.12"),
    "tz": (codecs.TIMESTAMPTZ, b"2013-01-01 10:00:00+00"),
    "u": (codecs.UUID, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "j": (codecs.JSON, b'{"a": 1.0,  "b":null}'),
    "jb": (codecs.JSONB, b'{"a": 1.0}'),
    "o": (codecs.OID, b"4294967295"),
    "tm": (codecs.TIME, b"24:00:00"),
    "tmz": (codecs.TIMETZ, b"23:59:59.999999-15:59"),
    "iv": (codecs.INTERVAL, b"P-1Y2M3DT-4H5M6.789012S"),
    "bi": (codecs.BIT, b"101"),
    "vb": (codecs.VARBIT, b""),
    "e": (MOOD, b'very "happy"'),
    "dm": (PRICE, b"-12.50"),
    "ai": (INT4S, b"{{1,NULL},{3,4}}"),
    "ta": (TEXTS, rb'{a,NULL,"NULL","","a,b","d\"e","f\\\\g"," h "}'),
    "af": (FLOAT8S, b"{9.999999999999999e+22,-0,NaN,NULL,1e-05}"),
    "ab": (BOXES, b"{(1,1),(0,0);(3,3),(2,2)}"),
}


def all_types_schema(**kwargs):
    return table_schema(*((name, oid) for name, (oid, _) in ALL_TYPES.items()), **kwargs)


def all_types_row():
    return [text for _, text in ALL_TYPES.values()]
