"""Postgres' text of a value → its JSON fragment, for each kind of type. Pure, hot.

Snapshot and stream share these, so both write equal bytes. Nothing here parses a value further
than its JSON form needs.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable

import orjson

JsonEncoder = Callable[[bytes], bytes]

_FLOAT_WORDS = frozenset((b"NaN", b"Infinity", b"-Infinity"))


class BadText(ValueError):
    """A value's bytes are not valid text of its type; holds no value."""


def boolean(value: bytes) -> bytes:
    """``t`` and ``f`` as ``true`` and ``false``."""
    return b"true" if value == b"t" else b"false"


def plain(value: bytes) -> bytes:
    """Integers, whose text is a JSON number."""
    return value


def floating(value: bytes) -> bytes:
    """Numbers as they stand; NaN and the infinities as strings."""
    if value in _FLOAT_WORDS:
        return b'"' + value + b'"'
    # JSON readers take -0 for the integer 0 and lose the sign.
    return b"-0.0" if value == b"-0" else value


def quoted(value: bytes) -> bytes:
    """Types whose text never needs escaping in JSON."""
    return b'"' + value + b'"'


def text(value: bytes) -> bytes:
    """Any text; raises BadText for bytes that are no UTF-8."""
    try:
        return orjson.dumps(value.decode())
    except UnicodeDecodeError:
        raise BadText("not valid UTF-8") from None


def binary(value: bytes) -> bytes:
    """The hex form of bytea as base64; raises BadText."""
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


def timestamp(value: bytes) -> bytes:
    """ISO 8601 with six digits of the second's fraction."""
    # First the usual text: four digits of the year, six of the fraction.
    if len(value) == 26 and value[10] == 0x20 and value[-1] != 0x43:  # ' ', 'C' of BC
        return b'"%bT%b"' % (value[:10], value[11:])
    if not _is_plain_timestamp(value):
        return b'"' + value + b'"'
    return b'"' + value[:10] + b"T" + value[11:19] + b"." + value[20:].ljust(6, b"0") + b'"'


def timestamptz(value: bytes) -> bytes:
    """The same in UTC, with Z; raises BadText for another offset."""
    if len(value) == 29 and value[10] == 0x20 and value[26:] == b"+00":
        return b'"%bT%bZ"' % (value[:10], value[11:26])
    if not _is_plain_timestamp(value):
        return b'"' + value + b'"'
    if value[-3:] != b"+00":
        raise BadText("timestamptz that is not in UTC")
    fraction = value[20:-3].ljust(6, b"0")
    return b'"' + value[:10] + b"T" + value[11:19] + b"." + fraction + b'Z"'
