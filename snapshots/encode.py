"""Encodes rows of a load many at a time: the same bytes as ``RowEncoder.snapshot_row``. Hot.

Column by column, because then most columns need no work per value: numbers stay as they are,
and text whose batch holds nothing to escape only gets its quotes, from the row's template.
``tests/unit/snapshots/test_encode.py`` holds it equal to the encoder of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import orjson

from cdc import codecs
from cdc.codecs import CODECS, BadText, JsonEncoder
from cdc.envelope import BadValue, Headers, RowEncoder, TransactionFields
from snapshots.copytext import Fields

_Column = Sequence[bytes | None]
#: Takes a column's values; gives JSON fragments, or values that only lack their quotes.
_Encode = Callable[[_Column], tuple[Sequence[bytes], bool]]

_AS_THEY_ARE = frozenset((codecs.INT2, codecs.INT4, codecs.INT8))
_QUOTED = frozenset((codecs.NUMERIC, codecs.DATE, codecs.UUID))
_TEXT = frozenset((codecs.TEXT, codecs.VARCHAR, codecs.BPCHAR, codecs.JSON, codecs.JSONB))
_NEEDS_ESCAPE = re.compile(rb'[\x00-\x1f"\\]')


class BatchEncoder:
    """Encodes rows of one table and load.

    Args:
        encoder: Of the table's schema.
        load: What the records of the load share.
    """

    def __init__(self, encoder: RowEncoder, load: TransactionFields) -> None:
        schema = encoder.schema
        before, after, headers = encoder.load_frame(load)
        self.headers: Headers = headers
        self._names = schema.column_names
        self._keys = schema.key_indexes
        self._before, self._after = before.replace(b"%", b"%%"), after.replace(b"%", b"%%")
        self._fields = [orjson.dumps(name).replace(b"%", b"%%") + b":" for name in self._names]
        self._encode = [_column_encoder(c.type_oid) for c in schema.columns]
        self._to_json = [CODECS[c.type_oid].to_json for c in schema.columns]
        self._templates: dict[tuple[bool, ...], tuple[bytes, bytes]] = {}

    def encode(self, rows: Sequence[Fields]) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of the records of the rows, in order.

        Raises:
            BadValue: A value that is not text of its type, or a key column without a value.
        """
        if not rows:
            return [], []
        raw = list(zip(*rows, strict=True))
        columns: list[Sequence[bytes]] = []
        quotes = []
        for i, (values, encode) in enumerate(zip(raw, self._encode, strict=True)):
            try:
                column, quote = encode(values)
            except BadText:
                raise self._bad_value(i, values) from None
            columns.append(column)
            quotes.append(quote)
        for i in self._keys:
            if None in raw[i]:
                raise BadValue(self._names[i], "a key column without a value")
        value, key = self._template(tuple(quotes))
        return (
            list(map(key.__mod__, zip(*[columns[i] for i in self._keys], strict=True))),
            list(map(value.__mod__, zip(*columns, strict=True))),
        )

    def _template(self, quotes: tuple[bool, ...]) -> tuple[bytes, bytes]:
        """Templates of value and key, for columns that lack their quotes or not."""
        found = self._templates.get(quotes)
        if found is None:
            fields = [
                name + (b'"%b"' if quote else b"%b")
                for name, quote in zip(self._fields, quotes, strict=True)
            ]
            found = self._templates[quotes] = (
                self._before + _object(fields) + self._after,
                _object(fields[i] for i in self._keys),
            )
        return found

    def _bad_value(self, index: int, values: _Column) -> BadValue:
        for value in values:
            if value is not None:
                try:
                    self._to_json[index](value)
                except BadText as reason:
                    return BadValue(self._names[index], str(reason))
        return BadValue(self._names[index], "not valid text of its type")


def _object(fields: Iterable[bytes]) -> bytes:
    return b"{" + b",".join(fields) + b"}"


def _column_encoder(type_oid: int) -> _Encode:
    if type_oid in _AS_THEY_ARE:
        return _plain
    if type_oid in _QUOTED:
        return _quoted
    to_json = CODECS[type_oid].to_json
    return _text(to_json) if type_oid in _TEXT else _each(to_json)


def _plain(values: _Column) -> tuple[Sequence[bytes], bool]:
    if None in values:
        return [b"null" if v is None else v for v in values], False
    return values, False  # type: ignore[return-value]


def _quoted(values: _Column) -> tuple[Sequence[bytes], bool]:
    if None in values:
        return [b"null" if v is None else b'"%b"' % v for v in values], False
    return values, True  # type: ignore[return-value]


def _text(to_json: JsonEncoder) -> _Encode:
    each = _each(to_json)

    def encode(values: _Column) -> tuple[Sequence[bytes], bool]:
        # The spaces keep the parts of a cut UTF-8 sequence from meeting the next value's.
        together = b" ".join([v for v in values if v is not None] if None in values else values)  # type: ignore[arg-type]
        if _NEEDS_ESCAPE.search(together) is not None:
            return each(values)
        if not together.isascii():
            try:
                together.decode()
            except UnicodeDecodeError:
                raise BadText("not valid UTF-8") from None
        return _quoted(values)

    return encode


def _each(to_json: JsonEncoder) -> _Encode:
    def encode(values: _Column) -> tuple[Sequence[bytes], bool]:
        if None in values:
            return [b"null" if v is None else to_json(v) for v in values], False
        return list(map(to_json, values)), False  # type: ignore[arg-type]

    return encode
