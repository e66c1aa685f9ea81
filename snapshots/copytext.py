r"""Postgres' COPY text format, as COPY TO STDOUT prints it, to rows of bytes. Pure, hot.

A line holds the columns between tabs and ends with a newline. ``\N`` is NULL; the server
escapes backspace, form feed, newline, carriage return, tab, vertical tab and the backslash,
so a raw tab or newline always separates. The octal and hex forms that COPY FROM also takes
are understood too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc.errors import ProtocolViolation

Fields = Sequence[bytes | None]

_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}
_NULL = rb"\N"
_USUAL = [(b"\\" + letter, char) for letter, char in _LETTERS.items()]


def parse_block(block: bytes, columns: int) -> list[Fields]:
    """The rows of whole lines.

    Args:
        block: Lines, each with its newline; may be empty.
        columns: Of the table, one at the least.

    Raises:
        ProtocolViolation: ``bad_copy_data``: the last line does not end, or a line has
            another number of values.
    """
    if not block:
        return []
    lines = block.split(b"\n")
    if lines.pop():
        raise ProtocolViolation("bad_copy_data", "COPY sent a part of a row")
    rows: list[Fields]
    if b"\\" in block:
        rows = [parse_line(line) for line in lines]
    else:
        rows = [line.split(b"\t") for line in lines]
    if set(map(len, rows)) != {columns}:
        raise ProtocolViolation("bad_copy_data", f"COPY sent a row without its {columns} columns")
    return rows


def parse_line(line: bytes) -> Fields:
    """The values of one line, without its newline; None is NULL."""
    fields = line.split(b"\t")
    if b"\\" not in line:
        return fields
    return [
        field if b"\\" not in field else None if field == _NULL else unescape(field)
        for field in fields
    ]


def unescape(field: bytes) -> bytes:
    r"""A value without its escapes; not for ``\N``."""
    # Replacing is quicker and takes less memory than a call for each escape. Backslashes that
    # are escaped themselves are set aside: what follows one is not of an escape.
    parts = field.split(rb"\\")
    for escape, char in _USUAL:
        parts = [part.replace(escape, char) for part in parts]
    return b"\\".join([_ESCAPE.sub(_plain, part) if b"\\" in part else part for part in parts])


def _plain(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    letter = _LETTERS.get(escape)
    if letter is not None:
        return letter
    if escape[:1] == b"x" and len(escape) > 1:
        return bytes((int(escape[1:], 16),))
    if escape[:1] in b"01234567":
        return bytes((int(escape, 8) & 0xFF,))
    return escape
