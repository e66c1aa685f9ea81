"""The record of one change: Debezium's envelope, keys, headers and tombstones. Pure, hot.

Pinned in docs/formats.md. A row is a sequence of ``bytes`` (Postgres text), None (NULL) or
UNSENT, in the order of ``TableSchema.columns``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from cdc.codecs import BadText, codec_of, literal_form
from cdc.errors import LogError
from cdc.position import MAX_ORDINAL, Position
from cdc.schema import TableSchema
from cdc.unsent import UNSENT, Unsent

Value = bytes | None | Unsent
Row = Sequence[Value]
Headers = list[tuple[str, bytes]]
#: Key, value (None: a tombstone) and headers, ready to produce.
OutRecord = tuple[bytes, bytes | None, Headers]

POSITION_HEADER = "cdc.position"
SCHEMA_HEADER = "cdc.schema"
NEW_KEY_HEADER = "__debezium.newkey"
OLD_KEY_HEADER = "__debezium.oldkey"


class BadValue(ValueError):
    """A value of ``column`` is not valid text of its type; the value itself is not kept."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column}: {reason}")
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Origin:
    """Where records come from: the fields of ``source`` that never change."""

    version: str
    source: str
    database: str


class TransactionFields:
    """The parts of an envelope that all records of a transaction share, encoded once.

    Args:
        epoch: Of the source's history.
        lsn: Start of the commit record (stream) or the consistent point - 1 (snapshot).
        xid: Transaction id; None for a snapshot.
        commit_us: Commit time (stream) or time of the snapshot, µs since 1970 UTC.
        now_ms: When we handle it, ms since 1970 UTC.
        snapshot: Whether these are rows of a load.
    """

    __slots__ = ("fragment", "position_prefix", "tail")

    def __init__(
        self, epoch: int, lsn: int, xid: int | None, commit_us: int, now_ms: int, *, snapshot: bool
    ) -> None:
        self.position_prefix = b"%04X-%016X-" % (epoch, lsn)
        self.fragment = b'"ts_ms":%d,"ts_us":%d,"snapshot":"%b","txId":%b,"lsn":%d,"position":"' % (
            commit_us // 1000,
            commit_us,
            b"true" if snapshot else b"false",
            b"null" if xid is None else b"%d" % xid,
            lsn,
        )
        self.tail = b'","ts_ms":%d}' % now_ms

    def position(self, ordinal: int) -> bytes:
        """Text form of the position of a change of this transaction."""
        return b"%b%08X" % (self.position_prefix, ordinal)

    def snapshot_position(self) -> bytes:
        """Text form of the position that all rows of a load share."""
        return self.position(MAX_ORDINAL)


class RowEncoder:
    """Encodes the changes of one schema version of one table."""

    def __init__(self, schema: TableSchema, origin: Origin) -> None:
        self.schema = schema
        names = [orjson.dumps(name) for name in schema.column_names]
        self._encoders = [codec_of(c).to_json for c in schema.columns]
        self._names = names
        self._image_template = _template(names)
        # For rows without NULL, most of them: quotes are in the template, calls only where the
        # text changes.
        forms = [literal_form(c) for c in schema.columns]
        self._dense_template = _template(names, [form or b"%b" for form in forms])
        self._dense_plan = [(i, self._encoders[i]) for i, form in enumerate(forms) if form is None]
        self._key_template = _template([names[i] for i in schema.key_indexes])
        self._key_plan = [(i, self._encoders[i]) for i in schema.key_indexes]
        self._source = (
            b',"source":{"version":%b,"connector":"postgresql","name":%b,"db":%b,"schema":%b,'
            b'"table":%b,'
            % tuple(
                orjson.dumps(text)
                for text in (
                    origin.version,
                    origin.source,
                    origin.database,
                    schema.schema,
                    schema.table,
                )
            )
        )
        self._schema_header = (SCHEMA_HEADER, b"%d" % schema.version)
        self.toastable_indexes = tuple(
            i for i, c in enumerate(schema.columns) if codec_of(c).toastable
        )

    # --- parts ---

    def key(self, row: Row) -> bytes:
        """The record key: a JSON object of the key columns. Raises BadValue."""
        try:
            return self._key_template % tuple([encode(row[i]) for i, encode in self._key_plan])  # type: ignore[arg-type]
        except (BadText, TypeError, AttributeError) as problem:
            raise self._bad_value(row, problem) from None

    def image(self, row: Row) -> bytes:
        """JSON object of the row, without the columns that are UNSENT. Raises BadValue."""
        if UNSENT in row:
            return self._partial_image([i for i, v in enumerate(row) if v is not UNSENT], row)
        return self._full_image(row)

    def _full_image(self, row: Row) -> bytes:
        """``image`` of a row without UNSENT."""
        try:
            if None not in row and len(row) == len(self._encoders):
                values: list[Any] = list(row)
                for i, encode in self._dense_plan:
                    values[i] = encode(values[i])
                return self._dense_template % tuple(values)
            return self._image_template % tuple(
                [
                    b"null" if value is None else encode(value)  # type: ignore[arg-type]
                    for encode, value in zip(self._encoders, row, strict=True)
                ]
            )
        except BadText as problem:
            raise self._bad_value(row, problem) from None

    def identity_image(self, row: Row) -> bytes:
        """JSON object of the identity's columns alone, for a K tuple. Raises BadValue."""
        return self._partial_image(sorted(self.schema.key_indexes), row)

    # --- records of a change ---

    def snapshot_row(self, row: Row, load: TransactionFields) -> OutRecord:
        """The record of a row of a load."""
        position = load.snapshot_position()
        value = self._value(b"r", b"null", self.image(row), load, position, ())
        return self.key(row), value, self.headers(position)

    def frame(self, op: bytes, txn: TransactionFields) -> tuple[bytes, bytes, bytes]:
        """What records without an old row share, for encoders of many rows at once.

        Returns:
            What stands before the image in a value, between image and position, and after it.
        """
        before, between, after = self._value(op, b"null", b"\0", txn, b"\0", ()).split(b"\0")
        return before, between, after

    def headers(self, position: bytes) -> Headers:
        """Headers of a record at this position, without those of a key change."""
        return [(POSITION_HEADER, position), self._schema_header]

    def insert(self, new: Row, txn: TransactionFields, ordinal: int) -> OutRecord:
        """The record of an insert, whose row is always whole."""
        position = txn.position(ordinal)
        value = self._value(b"c", b"null", self._full_image(new), txn, position, ())
        return self.key(new), value, [(POSITION_HEADER, position), self._schema_header]

    def update(
        self,
        old_kind: str,
        old: Row | None,
        new: Row,
        txn: TransactionFields,
        ordinal: int,
        unchanged: tuple[str, ...] = (),
    ) -> list[OutRecord]:
        """The records of an update: one, or delete + tombstone + create when the key changed.

        Args:
            old_kind: ``""`` (no old tuple), ``"K"`` (identity columns) or ``"O"`` (full row).
            old: The old tuple, or None.
            new: The new row, after ``complete``; columns still UNSENT are left out of ``after``.
            txn: The transaction.
            ordinal: Of the change in its transaction.
            unchanged: Columns that the stream did not carry, filled by a re-read or not.
        """
        position = txn.position(ordinal)
        headers = self.headers(position)
        key = self.key(new)
        before = self._before(old_kind, old)
        old_key = key if old is None else self.key(old)
        if old_key == key:
            value = self._value(b"u", before, self.image(new), txn, position, unchanged)
            return [(key, value, headers)]
        gone = self._value(b"d", before, b"null", txn, position, ())
        created = self._value(b"c", b"null", self.image(new), txn, position, unchanged)
        return [
            (old_key, gone, [*headers, (NEW_KEY_HEADER, key)]),
            (old_key, None, headers),
            (key, created, [*headers, (OLD_KEY_HEADER, old_key)]),
        ]

    def delete(
        self, old_kind: str, old: Row, txn: TransactionFields, ordinal: int
    ) -> list[OutRecord]:
        """The records of a delete: the delete and its tombstone."""
        position = txn.position(ordinal)
        headers = self.headers(position)
        key = self.key(old)
        value = self._value(b"d", self._before(old_kind, old), b"null", txn, position, ())
        return [(key, value, headers), (key, None, headers)]

    def complete(self, old_kind: str, old: Row | None, new: Row) -> tuple[Row, tuple[int, ...]]:
        """Fill unsent columns from the old tuple, which holds the very same values.

        But for NULL, which is never left out: an old row with it there is of a partition that
        sends its key only, and that the server tells of as a whole row all the same.

        Returns:
            The row, and the indexes of columns that are still UNSENT.
        """
        if UNSENT not in new:
            return new, ()
        known: Sequence[int] = ()
        if old_kind == "O":
            known = range(len(new))
        elif old_kind == "K":
            known = self.schema.key_indexes
        row = list(new)
        if old is not None:
            for i in known:
                if row[i] is UNSENT and old[i] is not None:
                    row[i] = old[i]
        return row, tuple(i for i, value in enumerate(row) if value is UNSENT)

    # --- inside ---

    def _before(self, old_kind: str, old: Row | None) -> bytes:
        if old is None:
            return b"null"
        return self.image(old) if old_kind == "O" else self.identity_image(old)

    def _value(
        self,
        op: bytes,
        before: bytes,
        after: bytes,
        txn: TransactionFields,
        position: bytes,
        unchanged: tuple[str, ...],
    ) -> bytes:
        parts = [b'{"before":', before, b',"after":', after, self._source, txn.fragment, position]
        if unchanged:
            parts += [b'","unchanged":', orjson.dumps(unchanged), b'},"op":"', op, txn.tail]
        else:
            parts += [b'"},"op":"', op, txn.tail]
        return b"".join(parts)

    def _partial_image(self, indexes: Sequence[int], row: Row) -> bytes:
        fields = []
        for i in indexes:
            value = row[i]
            assert value is not UNSENT  # noqa: S101 - our callers chose the sent ones
            try:
                text = b"null" if value is None else self._encoders[i](value)
            except BadText as problem:
                raise self._bad_value(row, problem) from None
            fields.append(b"%b:%b" % (self._names[i], text))
        return b"{%b}" % b",".join(fields)

    def _bad_value(self, row: Row, problem: Exception) -> BadValue:
        """Find which column it was; only on the way to an error."""
        for i in self.schema.key_indexes:
            if row[i] is None or row[i] is UNSENT:
                return BadValue(self.schema.column_names[i], "a key column without a value")
        for column, encode, value in zip(self.schema.columns, self._encoders, row, strict=True):
            if isinstance(value, bytes):
                try:
                    encode(value)
                except BadText as reason:
                    return BadValue(column.name, str(reason))
        return BadValue("?", str(problem))


def _template(names: list[bytes], forms: Sequence[bytes] | None = None) -> bytes:
    """A JSON object to fill in; ``forms`` are ``%b`` where not given."""
    return b"{%b}" % b",".join(
        name.replace(b"%", b"%%") + b":" + form
        for name, form in zip(names, forms or [b"%b"] * len(names), strict=True)
    )


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of a table topic as a reader sees it.

    Args:
        partition: Of the topic.
        offset: In the partition.
        key: The key's JSON bytes; keys are equal iff these are.
        position: Of the change; records of one key change share one.
        schema_version: To parse ``before`` and ``after`` with.
        op: ``r``, ``c``, ``u``, ``d``, or ``tombstone``.
        before: Column name to JSON value, or None.
        after: Column name to JSON value, or None.
        unchanged: Columns that the stream did not carry: a reader that holds the row keeps
            its own value; the one in ``after``, if there, may be from the future.
        new_key: On the delete of a key change, the key that the row has now.
        old_key: On the create of a key change, the key that the row had.
    """

    partition: int
    offset: int
    key: bytes
    position: Position
    schema_version: int
    op: str
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    unchanged: tuple[str, ...] = ()
    new_key: bytes | None = None
    old_key: bytes | None = None


def parse_record(
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]] | None,
) -> LogRecord:
    """Read a record; raises LogError ``bad_record`` with topic, partition and offset."""
    try:
        fields = dict(headers or ())
        position = Position.parse(fields[POSITION_HEADER].decode())
        version = int(fields[SCHEMA_HEADER])
        if key is None:
            raise ValueError("no key")
        if value is None:
            return LogRecord(partition, offset, key, position, version, "tombstone")
        envelope = orjson.loads(value)
        source = envelope["source"]
        if envelope["op"] not in ("r", "c", "u", "d"):
            raise ValueError("unknown op")
        return LogRecord(
            partition,
            offset,
            key,
            position,
            version,
            envelope["op"],
            envelope["before"],
            envelope["after"],
            tuple(source.get("unchanged", ())),
            fields.get(NEW_KEY_HEADER),
            fields.get(OLD_KEY_HEADER),
        )
    except (KeyError, ValueError, TypeError, LogError) as problem:
        kind = type(problem).__name__
        raise LogError(
            "bad_record",
            f"record {topic}[{partition}]@{offset} is not one of ours ({kind})",
            remedy="only capture may write this topic; rebuild it with a new load",
        ) from None
