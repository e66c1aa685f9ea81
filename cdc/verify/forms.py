r"""The canonical text of a row, which source and derived table each compute by themselves. Pure.

A value's text is Postgres' own under ``cdc.session_settings``, but for floats (their bits, so
that -0 is not 0), bytes (their hex digits) and an ARRAY (its elements, each followed by
SEPARATOR). The row is its values joined by SEPARATOR: ESCAPE is doubled inside of values, and of
an ARRAY's elements, so no two rows have the same text, and NULL_MARK is no value.
Rows are compared by the md5 of that text, ranges by the sum of their rows' digests.

A range is one of ``RANGES`` parts of the table by key: of the hash of its text, or of an integer
key's own bits, which are cheaper. All of that stands in SQL twice, for either side, and is held
together by tests on a real Postgres.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.codecs import delta_type
from cdc.schema import Column, TableSchema

ESCAPE: Final = "\x1f"
SEPARATOR: Final = ESCAPE + ","
NULL_MARK: Final = ESCAPE + "N"

#: Hexadecimal digits of the key's md5 that choose the range; as many bits of an integer key.
RANGE_DIGITS: Final = 3
RANGES: Final = 16**RANGE_DIGITS
#: Shifts that fold an integer key, so that keys which share their low bits still spread.
KEY_SHIFTS: Final = (12, 24, 36, 48)
#: Hexadecimal digits of a row's md5 that are summed up: a positive 64-bit integer.
SUM_DIGITS: Final = 15

_INTEGERS: Final = frozenset(("SMALLINT", "INT", "BIGINT"))


class Form(enum.Enum):
    """What the text of a value is."""

    TEXT = "text"  # as Postgres prints it
    HEX = "hex"  # of bytes
    REAL = "real"  # eight hexadecimal digits, or NaN
    DOUBLE = "double"  # sixteen of them, or NaN
    ARRAY = "array"  # of its elements


_FORMS: Final = {"BINARY": Form.HEX, "FLOAT": Form.REAL, "DOUBLE": Form.DOUBLE}


def form_of(column: Column) -> Form:
    """The form of a column's values, by its type in the derived table."""
    if column.element is not None:
        return Form.ARRAY
    return _FORMS.get(delta_type(column), Form.TEXT)


def holds_signs(column: Column) -> bool:
    """Whether ESCAPE can stand in the texts of the column's values."""
    return form_of(column) is Form.ARRAY or delta_type(column) == "STRING"


def compared(schema: TableSchema) -> TableSchema:
    """The schema that rows are compared by: without a key, all columns together are one."""
    return replace(schema, key=schema.column_names) if schema.counted else schema


def has_integer_key(schema: TableSchema) -> bool:
    """Whether the key is one integer, whose bits choose the range."""
    if len(schema.key) != 1:
        return False
    column = schema.column(schema.key[0])
    return column.not_null and delta_type(column) in _INTEGERS


def joined(texts: Sequence[str | None]) -> str:
    """The canonical text of values, as both sides build it in SQL."""
    return SEPARATOR.join(
        NULL_MARK if text is None else text.replace(ESCAPE, ESCAPE * 2) for text in texts
    )


def digest(texts: Sequence[str | None]) -> str:
    """md5 of the canonical text, in hexadecimal digits."""
    return hashlib.md5(joined(texts).encode(), usedforsecurity=False).hexdigest()


def range_of(schema: TableSchema, key: Sequence[str | None]) -> int:
    """The range that a key belongs to.

    Args:
        schema: Of the table.
        key: Texts of its key.
    """
    if has_integer_key(schema) and key[0] is not None:
        number = folded = int(key[0])
        for shift in KEY_SHIFTS:
            folded ^= number >> shift
        return folded % RANGES
    return int(digest(key)[:RANGE_DIGITS], 16)


def shown(column: Column, text: str | None) -> Any:
    """A value's text for people and JSON: numbers and truth values as such."""
    if text is None:
        return None
    form = form_of(column)
    if column.element is not None:
        return [shown(column.element, part) for part in _parts(text)]
    if form is Form.HEX:
        return "\\x" + text
    if form is not Form.TEXT:
        if text == "NaN":
            return text
        raw = bytes.fromhex(text)
        (number,) = struct.unpack(">f" if form is Form.REAL else ">d", raw)
        return number if math.isfinite(number) else str(number).replace("inf", "Infinity")
    kind = delta_type(column)
    if kind in _INTEGERS:
        return int(text)
    return text == "true" if kind == "BOOLEAN" else text


def _parts(text: str) -> list[str | None]:
    """The texts of an ARRAY's elements, out of its own."""
    # A doubled ESCAPE is one of the element's, whatever follows it.
    found = re.findall(f"((?:{ESCAPE}{ESCAPE}|[^{ESCAPE}])*|{NULL_MARK}){SEPARATOR}", text)
    return [None if part == NULL_MARK else part.replace(ESCAPE * 2, ESCAPE) for part in found]
