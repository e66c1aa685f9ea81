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

#: For every parse of ours: a value may be as long as a record. What cannot be parsed Spark puts
#: into a field by this name, so it must not be a column's.
JSON_OPTIONS: Final = {
    "maxStringLen": str(2**31 - 1),
    "columnNameOfCorruptRecord": "_cdc_not_json",
}
#: A string of JSON, or what is between two. Possessive, so that no length is too much.
_TOKENS: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^"]++'
#: What is no string, in JSON and in an array's text.
_WORDS: Final = (("null", "NULL"), ("true", "t"), ("false", "f"))
#: Bounds before an array's text, which no JSON array begins with.
BOUNDS: Final = r"^\[-?[0-9]+:"
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
    """``array_out``'s text: strings of the JSON one by one, what is between them as a whole."""
    special = f'[{re.escape(delimiter)}{{}}"\\\\ \\t\\n\\x0B\\f\\r]'

    def of_string(token: Column) -> Column:
        parsed = f.from_json(f.concat(f.lit("["), token, f.lit("]")), "array<string>", JSON_OPTIONS)
        bare = f.substring(token, f.lit(2), f.length(token) - 2)
        plain = element(f.when(token.contains("\\"), parsed[0]).otherwise(bare))
        escaped = f.replace(f.replace(plain, f.lit("\\"), f.lit("\\\\")), f.lit('"'), f.lit('\\"'))
        needs_none = (plain != "") & (f.upper(plain) != "NULL") & ~plain.rlike(special)
        return f.when(needs_none, plain).otherwise(f.concat(f.lit('"'), escaped, f.lit('"')))

    def of_rest(token: Column) -> Column:
        signs = f.translate(token, "[],", "{}" + delimiter)
        for word, shown in _WORDS:
            signs = f.replace(signs, f.lit(word), f.lit(shown))
        return f.regexp_replace(signs, r"-0\.0(?![0-9])", "-0")

    tokens = f.regexp_extract_all(text, f.lit(_TOKENS), f.lit(0))
    shown = f.transform(
        tokens,
        lambda token: f.when(token.startswith('"'), of_string(token)).otherwise(of_rest(token)),
    )
    return f.when(text.rlike(BOUNDS), text).when(text.startswith("["), f.array_join(shown, ""))
