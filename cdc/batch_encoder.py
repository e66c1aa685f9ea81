"""Encodes many rows of one table at a time: the same bytes as ``RowEncoder``. Pure, hot.

Column by column, because then most columns need no work per value: numbers stay as they are,
and text whose batch holds nothing to escape only gets its quotes, from the row's template.
For rows of a load and for runs of inserts; ``tests/unit/cdc/test_batch_encoder.py`` holds it
equal to ``RowEncoder``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import orjson

from cdc.codecs import BadText, JsonEncoder, codec_of, to_json
from cdc.envelope import BadValue, Headers, RowEncoder, TransactionFields
from cdc.schema import Column as SchemaColumn

#: A column's values, one for each row; None is NULL.
Column = Sequence[bytes | None]
#: Takes a column's values; gives JSON fragments, or values that only lack their quotes.
_Encode = Callable[[Column], tuple[Sequence[bytes], bool]]

# What stands in JSON as it is. Deleting these from a text is several times quicker than
# searching it for the others.
_NO_ESCAPE = bytes(c for c in range(0x20, 0x100) if c not in b'"\\')


class BatchEncoder:
    """Encodes rows of one schema version of a table.

    Args:
        encoder: Of the schema.
    """

    def __init__(self, encoder: RowEncoder) -> None:
        schema = encoder.schema
        self._encoder = encoder
        self._names = schema.column_names
        self._keys = schema.key_indexes
        self._fields = [orjson.dumps(name).replace(b"%", b"%%") + b":" for name in self._names]
        self._encode = [_column_encoder(c) for c in schema.columns]
        self._to_json = [codec_of(c).to_json for c in schema.columns]
        self._templates: dict[tuple[bool, ...], tuple[bytes, bytes]] = {}

    def snapshot_rows(
        self, columns: Sequence[Column], load: TransactionFields
    ) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of the records of rows of a load, in order.

        Args:
            columns: All columns of the schema, each of the same number of values, one or more.
            load: What the records of the load share.

        Raises:
            BadValue: A value that is not text of its type, or a key column without a value.
        """
        encoded, row, keys = self._encoded(columns)
        before, between, after = self._encoder.frame(b"r", load)
        value = _literal(before) + row + _literal(between + load.snapshot_position() + after)
        return keys, list(map(value.__mod__, zip(*encoded, strict=True)))

    def inserts(
        self, columns: Sequence[Column], txn: TransactionFields, ordinal: int
    ) -> tuple[list[bytes], list[bytes], list[Headers]]:
        """Keys, values and headers of the records of inserts that follow one another.

        Args:
            columns: As for ``snapshot_rows``.
            txn: Their transaction.
            ordinal: Of the first of them in its transaction.

        Raises:
            BadValue: As ``snapshot_rows``.
        """
        encoded, row, keys = self._encoded(columns)
        before, between, after = self._encoder.frame(b"c", txn)
        position = (_literal(txn.position_prefix) + b"%08X").__mod__
        positions = list(map(position, range(ordinal, ordinal + len(keys))))
        value = _literal(before) + row + _literal(between) + b"%b" + _literal(after)
        return (
            keys,
            list(map(value.__mod__, zip(*encoded, positions, strict=True))),
            list(map(self._encoder.headers, positions)),
        )

    def _encoded(self, raw: Sequence[Column]) -> tuple[list[Sequence[bytes]], bytes, list[bytes]]:
        """Encoded columns, the template of their row, and the keys."""
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
            if _has_nulls(raw[i]):
                raise BadValue(self._names[i], "a key column without a value")
        row, key = self._template(tuple(quotes))
        return (
            columns,
            row,
            list(map(key.__mod__, zip(*[columns[i] for i in self._keys], strict=True))),
        )

    def _template(self, quotes: tuple[bool, ...]) -> tuple[bytes, bytes]:
        """Templates of row and key, for columns that lack their quotes or not."""
        found = self._templates.get(quotes)
        if found is None:
            fields = [
                name + (b'"%b"' if quote else b"%b")
                for name, quote in zip(self._fields, quotes, strict=True)
            ]
            found = self._templates[quotes] = (
                _object(fields),
                _object(fields[i] for i in self._keys),
            )
        return found

    def _bad_value(self, index: int, values: Column) -> BadValue:
        for value in values:
            if value is not None:
                try:
                    self._to_json[index](value)
                except BadText as reason:
                    return BadValue(self._names[index], str(reason))
        return BadValue(self._names[index], "not valid text of its type")


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")


def _object(fields: Iterable[bytes]) -> bytes:
    return b"{" + b",".join(fields) + b"}"


def _column_encoder(column: SchemaColumn) -> _Encode:
    encoder = codec_of(column).to_json
    if encoder is to_json.plain:
        return _plain
    if encoder is to_json.quoted:
        return _quoted
    if encoder is to_json.floating:
        return _floats(encoder)
    if encoder is to_json.timestamp:
        return _timestamps(encoder, b"", b"")
    if encoder is to_json.timestamptz:
        return _timestamps(encoder, b"+00", b"Z")
    return _text(encoder) if encoder is to_json.text else _each(encoder)


def _has_nulls(values: Column) -> bool:
    # Asking values whether they are empty takes half of the time of comparing them with None.
    return not all(values) and None in values


def _plain(values: Column) -> tuple[Sequence[bytes], bool]:
    if _has_nulls(values):
        return [b"null" if v is None else v for v in values], False
    return values, False  # type: ignore[return-value]


def _floats(encoder: JsonEncoder) -> _Encode:
    each = _each(encoder)

    def encode(values: Column) -> tuple[Sequence[bytes], bool]:
        try:
            together = b" ".join(values)  # type: ignore[arg-type]
        except TypeError:
            # There is a None.
            return each(values)
        # The words, and a zero with a sign and nothing behind it.
        if b"N" in together or b"I" in together or b"-0 " in together or together[-2:] == b"-0":
            return each(values)
        return values, False  # type: ignore[return-value]

    return encode


def _quoted(values: Column) -> tuple[Sequence[bytes], bool]:
    if _has_nulls(values):
        return [b"null" if v is None else b'"%b"' % v for v in values], False
    return values, True  # type: ignore[return-value]


def _text(encoder: JsonEncoder) -> _Encode:
    each = _each(encoder)

    def encode(values: Column) -> tuple[Sequence[bytes], bool]:
        # The spaces keep the parts of a cut UTF-8 sequence from meeting the next value's.
        try:
            together, nulls = b" ".join(values), False  # type: ignore[arg-type]
        except TypeError:
            together, nulls = b" ".join([v for v in values if v is not None]), True
        if together.translate(None, _NO_ESCAPE):
            return each(values)
        if not together.isascii():
            try:
                together.decode()
            except UnicodeDecodeError:
                raise BadText("not valid UTF-8") from None
        return _quoted(values) if nulls else (values, True)  # type: ignore[return-value]

    return encode


def _timestamps(encoder: JsonEncoder, zone: bytes, suffix: bytes) -> _Encode:
    """Encoder of timestamps that end with ``zone`` in Postgres' text and ``suffix`` in JSON.

    Usual texts, with six digits and neither era nor fifth digit of the year, are of one length;
    then the whole column is one text, looked at and changed in steps of that length.
    """
    each = _each(encoder)
    size = 26 + len(zone)

    def six_digits(value: bytes) -> bytes:
        if value[10:11] != b" " or value.endswith(b"BC") or not value.endswith(zone):
            return value
        return value[:19] + b"." + value[20 : len(value) - len(zone)].ljust(6, b"0") + zone

    def encode(values: Column) -> tuple[Sequence[bytes], bool]:
        try:
            usual: list[bytes] = [v if len(v) == size else six_digits(v) for v in values]  # type: ignore[arg-type, misc]
        except TypeError:
            # There is a None.
            return each(values)
        count, step = len(usual), size + 1
        usual.append(b"")
        text = bytearray(b"\n".join(usual))
        if (
            len(text) != count * step
            or text[size::step] != b"\n" * count
            or text.count(b"\n") != count
            or text[10::step] != b" " * count
            or not text[25::step].isdigit()
        ):
            return each(values)
        for i, char in enumerate(zone, 26):
            if text[i::step] != bytes((char,)) * count:
                return each(values)
        text[10::step] = b"T" * count
        whole = bytes(text)
        if zone:
            whole = whole.replace(zone + b"\n", suffix + b"\n")
        encoded = whole.split(b"\n")
        encoded.pop()
        return encoded, True

    return encode


def _each(encoder: JsonEncoder) -> _Encode:
    def encode(values: Column) -> tuple[Sequence[bytes], bool]:
        if _has_nulls(values):
            return [b"null" if v is None else encoder(v) for v in values], False
        return list(map(encoder, values)), False  # type: ignore[arg-type]

    return encode
