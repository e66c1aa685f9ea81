"""Records of tables without a key, which are counted: which row came, and which one went. Pure.

One record for each change, with the key ``{}`` and without tombstones. Rows are known by the
digest of their JSON, which stands in headers, so that readers count without parsing a value.
Why that is enough is in docs/decisions/0005.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from cdc.envelope import Headers, Origin, OutRecord, Row, RowEncoder, TransactionFields
from cdc.errors import ProtocolViolation
from cdc.schema import TableSchema

#: The row that a record brings, and the one that it takes away.
PLUS_HEADER: Final = "cdc.plus"
MINUS_HEADER: Final = "cdc.minus"
#: Hexadecimal digits that stand for a row.
DIGEST_LENGTH: Final = 64
#: Of all records: a JSON object of no key columns.
NO_KEY: Final = b"{}"


def row_digest(image: bytes) -> bytes:
    """What a row is known by.

    Args:
        image: Its JSON, as in the envelope.
    """
    return sha256(image).hexdigest().encode()


def copy_key(digest: str, copy: int) -> str:
    """The replica's key of one of a row's copies, which are numbered from 1."""
    return f"{digest}-{copy:08X}"


class CountedEncoder(RowEncoder):
    """Encodes the changes of a table without a key."""

    def loaded(
        self, row: Row, load: TransactionFields, ordinal: int
    ) -> tuple[bytes, bytes, Headers]:
        """The record of a row of a load.

        Args:
            row: The row.
            load: What the records of the load share.
            ordinal: Number of the row in its load, from 1: each has a position of its own.
        """
        return self._came(b"r", row, load, ordinal)

    def insert(self, new: Row, txn: TransactionFields, ordinal: int) -> OutRecord:
        """The record of an insert."""
        return self._came(b"c", new, txn, ordinal)

    def update(
        self,
        old_kind: str,
        old: Row | None,
        new: Row,
        txn: TransactionFields,
        ordinal: int,
        unchanged: tuple[str, ...] = (),
    ) -> list[OutRecord]:
        """The record of an update: the old row went, the new one came.

        Raises:
            ProtocolViolation: Without the whole old row.
        """
        if old is None or old_kind != "O" or unchanged:
            raise _not_full()
        position = txn.position(ordinal)
        before, after = self._full_image(old), self._full_image(new)
        headers = [
            *self.headers(position),
            (PLUS_HEADER, row_digest(after)),
            (MINUS_HEADER, row_digest(before)),
        ]
        return [(NO_KEY, self._value(b"u", before, after, txn, position, ()), headers)]

    def delete(
        self, old_kind: str, old: Row, txn: TransactionFields, ordinal: int
    ) -> list[OutRecord]:
        """The record of a delete.

        Raises:
            ProtocolViolation: Without the whole old row.
        """
        if old_kind != "O":
            raise _not_full()
        position = txn.position(ordinal)
        before = self._full_image(old)
        headers: Headers = [*self.headers(position), (MINUS_HEADER, row_digest(before))]
        return [(NO_KEY, self._value(b"d", before, b"null", txn, position, ()), headers)]

    # --- inside ---

    def _came(
        self, op: bytes, row: Row, txn: TransactionFields, ordinal: int
    ) -> tuple[bytes, bytes, Headers]:
        position = txn.position(ordinal)
        image = self._full_image(row)
        headers = [*self.headers(position), (PLUS_HEADER, row_digest(image))]
        return NO_KEY, self._value(op, b"null", image, txn, position, ()), headers


def encoder_of(schema: TableSchema, origin: Origin) -> RowEncoder:
    """The encoder of a table's records."""
    return CountedEncoder(schema, origin) if schema.counted else RowEncoder(schema, origin)


def _not_full() -> ProtocolViolation:
    return ProtocolViolation(
        "malformed_message", "a change without the old row of identity FULL, of a table without key"
    )
