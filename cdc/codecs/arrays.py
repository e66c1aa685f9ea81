"""Postgres' text of an array ↔ nested lists of its elements' texts. Pure.

``array_out`` quotes an element that is empty, reads NULL, or holds a brace, a quote, a
backslash, the delimiter or white space. Bounds are printed only where one is not 1.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from cdc.codecs.to_json import BadText, JsonEncoder, text
from cdc.codecs.to_text import TextOf

#: What array_out takes for white space.
_SPACE = " \t\n\r\v\f"
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def array_encoder(element: JsonEncoder, delimiter: str) -> JsonEncoder:
    """Encoder to nested JSON arrays; with a lower bound other than 1, to the text as a string.

    Args:
        element: Encodes an element's text.
        delimiter: Between elements: a comma, but for ``box`` a semicolon.

    Returns:
        An encoder that raises BadText for what is not an array.
    """
    between = delimiter.encode()
    tokens = _tokens(delimiter)

    def flat(value: bytes) -> bytes:
        """One dimension, nothing quoted."""
        if value == b"{}":
            return b"[]"
        return b"[%b]" % b",".join(
            [b"null" if e == b"NULL" else element(e) for e in value[1:-1].split(between)]
        )

    def encode(value: bytes) -> bytes:
        if value[:1] != b"{":
            if value[:1] == b"[":
                return text(value)
            raise BadText("not an array")
        if b'"' not in value and value.rfind(b"{") == 0:
            return flat(value)
        return nested(value)

    def nested(value: bytes) -> bytes:
        parts: list[bytes] = []
        end = depth = 0
        for match in tokens.finditer(value):
            if match.start() != end:
                break
            end = match.end()
            sign, in_quotes, bare = match.groups()
            if sign is not None:
                depth += {b"{": 1, b"}": -1}.get(sign, 0)
                parts.append(_JSON_SIGNS.get(sign, b","))
            elif in_quotes is not None:
                plain = _ESCAPED.sub(rb"\1", in_quotes) if b"\\" in in_quotes else in_quotes
                parts.append(element(plain))
            else:
                parts.append(b"null" if bare == b"NULL" else element(bare))
        if end != len(value) or depth:
            raise BadText("not an array")
        return b"".join(parts)

    return encode


_JSON_SIGNS = {b"{": b"[", b"}": b"]"}


@cache
def _tokens(delimiter: str) -> re.Pattern[bytes]:
    """A brace or delimiter, a quoted element, or a bare one."""
    sign = re.escape(delimiter).encode()
    return re.compile(
        rb"([{}]|" + sign + rb')|"((?:[^"\\]|\\.)*)"|([^{}"\\' + sign + rb"]+)", re.DOTALL
    )


def array_text(element: TextOf, delimiter: str) -> TextOf:
    """The inverse: ``array_out``'s own text of a JSON value.

    Args:
        element: Gives an element's text.
        delimiter: Between elements.
    """
    needs_quotes = re.compile(f'[{re.escape(delimiter)}{{}}"\\\\{_SPACE}]').search

    def render(value: Any) -> str:
        if isinstance(value, list):
            return "{" + delimiter.join(map(render, value)) + "}"
        if value is None:
            return "NULL"
        shown = element(value)
        if not shown or needs_quotes(shown) or shown.upper() == "NULL":
            return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return shown

    def whole(value: Any) -> str:
        # With bounds it is text already.
        return value if isinstance(value, str) else render(value)

    return whole
