"""What a transaction does to each key in the end, for tables whose keys can swap in between. Pure.

Where a key constraint is deferrable, two rows can have one key in the middle of a transaction, so
its changes one by one would take a row for another. Such tables send whole old rows (identity
FULL): each removal is matched with the very row it removes, and only what is left at the commit,
when keys are unique again, is written.
"""

from __future__ import annotations

from typing import Final

from cdc.envelope import OutRecord, RowEncoder, TransactionFields, Value
from connectors.postgres.drift import SchemaDrift

#: What the changes of one transaction may take, in bytes of their messages.
MOST_BYTES: Final = 256 * 1024 * 1024

_Row = tuple[Value, ...]


class NetEffect:
    """Collects the changes of one table in one transaction.

    Args:
        encoder: Of the table's schema.
    """

    def __init__(self, encoder: RowEncoder) -> None:
        self._encoder = encoder
        # Rows of before the transaction that it removed, and the last change of each.
        self._removed: dict[_Row, int] = {}
        # Rows that it made and that are there; equal rows, with one key, can only pass.
        self._added: dict[_Row, list[int]] = {}
        #: Bytes of the messages so far.
        self.size = 0

    def add(self, row: _Row, ordinal: int, size: int) -> None:
        """A row is there from here on."""
        self._added.setdefault(row, []).append(ordinal)
        self.size += size

    def remove(self, row: _Row, ordinal: int, size: int) -> None:
        """A row is gone from here on."""
        made = self._added.get(row)
        if made is None:
            self._removed[row] = ordinal
        else:
            made.pop()
            if not made:
                del self._added[row]
        self.size += size

    def truncate(self) -> None:
        """The table is empty from here on; whatever came before is void."""
        self._removed.clear()
        self._added.clear()

    def records(self, txn: TransactionFields) -> list[OutRecord]:
        """The records of what is left, one change for each key at the most; collects anew.

        Raises:
            SchemaDrift: Two rows have one key.
            BadValue: As ``RowEncoder``.
        """
        encoder = self._encoder
        before = {encoder.key(row): (row, ordinal) for row, ordinal in self._removed.items()}
        after = {encoder.key(row): (row, made[-1]) for row, made in self._added.items()}
        if len(after) != sum(map(len, self._added.values())):
            raise SchemaDrift(
                "partition_identity",
                "two rows have one key at the end of a transaction: its old rows are not all told",
            )
        found: list[tuple[int, list[OutRecord]]] = []
        for key, (row, ordinal) in before.items():
            if key not in after:
                found.append((ordinal, encoder.delete("O", row, txn, ordinal)))
        for key, (row, ordinal) in after.items():
            if key in before:
                records = encoder.update("O", before[key][0], row, txn, ordinal)
            else:
                records = [encoder.insert(row, txn, ordinal)]
            found.append((ordinal, records))
        self.truncate()
        self.size = 0
        found.sort(key=lambda change: change[0])
        return [record for _, records in found for record in records]
