"""JSON values of the envelope to Postgres' own text, in Spark: ``cdc.codecs.to_text`` and arrays.

By expressions alone, so that executors need none of our code. Tests hold both alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import orjson
from pyspark.sql import Column
from pyspark.sql import functions as f

from cdc import codecs
from cdc.codecs import CODECS, OTHER, TextOf, to_text
from cdc.schema import Column as SchemaColumn
from cdc.schema import WireType

#: For every parse of ours: a value may be as long as a record.
JSON_OPTIONS: Final = {"maxStringLen": str(2**31 - 1)}
#: Postgres' limit of an array's dimensions.
_MOST_DIMENSIONS: Final = 6
#: Bounds before an array's text, which no JSON array begins with.
_BOUNDS: Final = r"^\[-?[0-9]+:"
#: All signs of an array of floats, or of one float, in JSON.
_FLOATS: Final = r'\[[-+0-9.eE,\[\]nulNaIfity"]*\]|-?[0-9][-+0-9.eE]*'


def postgres_text(wire: WireType, text: Column) -> Column:
    """Postgres' text of a value.

    Args:
        wire: What it is on the wire.
        text: The JSON value as text: strings without their quotes, anything else as it stands;
            NULL for null.

    Returns:
        NULL for NULL, and where ``text`` is not a value of the type.
    """
    if wire.array and _is_floating(wire):
        return _floats(text)
    element = _TEXTS[CODECS.get(wire.oid, OTHER).to_text]
    return _array(text, element, wire.delimiter) if wire.array else element(text)


def json_text(column: SchemaColumn, row: Column, text: Column) -> Column:
    """The JSON value as text, digit for digit.

    Spark's parser prints floats anew (1e+23 as 1.0E23): the same number in other digits, which
    only matters where the digits are kept.

    Args:
        column: The column.
        row: The row's JSON object, as it stands in the record.
        text: What the parser made of the value.
    """
    if not _is_floating(column.resolved) or codecs.delta_type(column) != "STRING":
        return text
    # Quotes within values are escaped, so nothing but the field looks like this.
    field = re.escape(orjson.dumps(column.name).decode())
    exact = f.regexp_extract(row, f"(?s)[{{,]{field}:({_FLOATS})", 1)
    return f.when(exact != "", exact).otherwise(text)


def row_text(value: Column) -> Column:
    """The object ``after`` as it stands in a record; NULL where it is null."""
    rest = f.substring_index(value, ',"after":{', -1)
    object = f.concat(f.lit("{"), f.substring_index(rest, ',"source":{', 1))
    return f.when(value.contains(',"after":{'), object)


def _is_floating(wire: WireType) -> bool:
    return wire.oid in (codecs.FLOAT4, codecs.FLOAT8)


def _floats(text: Column) -> Column:
    """An array of floats: no element of it is ever quoted."""
    plain = f.replace(f.replace(text, f.lit("null"), f.lit("NULL")), f.lit('"'), f.lit(""))
    signed = f.regexp_replace(plain, r"-0\.0(?=[,\]])", "-0")
    return f.when(text.rlike(_BOUNDS), text).otherwise(f.translate(signed, "[]", "{}"))


def _same(text: Column) -> Column:
    return text


def _boolean(text: Column) -> Column:
    return f.when(text == "true", "t").when(text == "false", "f")


def _floating(text: Column) -> Column:
    return f.when(text == "-0.0", "-0").otherwise(text)


def _binary(text: Column) -> Column:
    raw = f.try_to_binary(text, f.lit("base64"))
    return f.concat(f.lit("\\x"), f.lower(f.hex(raw)))


def _timestamp(text: Column) -> Column:
    fraction = f.regexp_replace(f.substring(text, 20, 7), r"\.?0+$", "")
    zone = f.when(text.endswith("Z"), "+00").otherwise("")
    date, time = f.substring(text, 1, 10), f.substring(text, 12, 8)
    plain = f.concat(date, f.lit(" "), time, fraction, zone)
    return f.when(f.substring(text, 11, 1) == "T", plain).otherwise(text)


_TEXTS: Final[dict[TextOf, Callable[[Column], Column]]] = {
    to_text.same: _same,
    to_text.integer: _same,
    to_text.boolean: _boolean,
    to_text.real: _floating,
    to_text.double: _floating,
    to_text.binary: _binary,
    to_text.timestamp: _timestamp,
}


def _array(text: Column, element: Callable[[Column], Column], delimiter: str) -> Column:
    """``array_out``'s text, by the number of brackets that the JSON begins with."""
    special = f'[{re.escape(delimiter)}{{}}"\\\\ \\t\\n\\x0B\\f\\r]'

    def shown(value: Column) -> Column:
        plain = element(value)
        escaped = f.replace(f.replace(plain, f.lit("\\"), f.lit("\\\\")), f.lit('"'), f.lit('\\"'))
        bare = (plain != "") & (f.upper(plain) != "NULL") & ~plain.rlike(special)
        quoted = f.concat(f.lit('"'), escaped, f.lit('"'))
        return f.when(value.isNull(), "NULL").when(bare, plain).otherwise(quoted)

    def rendered(values: Column, dimensions: int) -> Column:
        def one(value: Column) -> Column:
            return shown(value) if dimensions == 1 else rendered(value, dimensions - 1)

        inner = f.array_join(f.transform(values, one), delimiter)
        return f.concat(f.lit("{"), inner, f.lit("}"))

    depth = f.length(f.regexp_extract(text, r"^\[*", 0))
    found = f.when(text.rlike(_BOUNDS), text)
    for dimensions in range(1, _MOST_DIMENSIONS + 1):
        kind = "array<" * dimensions + "string" + ">" * dimensions
        parsed = f.from_json(text, kind, JSON_OPTIONS)
        found = found.when(depth == dimensions, rendered(parsed, dimensions))
    return found
