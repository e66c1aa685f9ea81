"""Values of an earlier event of the same row in the same transaction, for unsent TOAST columns.

An update comes without the large values that it did not touch. What the same transaction wrote
before is exactly such a value; anything else has to be re-read (``reread.py``). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc.unsent import UNSENT, Unsent

Value = bytes | None | Unsent
Row = Sequence[Value]

#: Postgres stores values out of line only in rows above about 2 kB (toast_tuple_target can go
#: down to 128 bytes; such rows are re-read instead). Text is rarely below half of the stored form.
_SMALLEST_BYTES = 1000
CACHE_BYTES = 16 * 1024 * 1024


class RowCache:
    """The newest rows of the open transaction, by relation id and key; the oldest go first.

    Losing an entry is harmless, a stale one never is: every change of a row passes through
    ``put`` or ``forget``.

    Args:
        limit: Bound of the values held, in bytes.
    """

    __slots__ = ("_limit", "_size", "rows")

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        #: Relation id and key to row and its size; for asking whether there is any.
        self.rows: dict[tuple[int, bytes], tuple[Row, int]] = {}
        self._size = 0

    def put(self, relid: int, key: bytes, row: Row) -> None:
        """The row is now as given (columns may be UNSENT); small rows are not kept."""
        self.forget(relid, key)
        size = 0
        for value in row:
            if value is not None and value is not UNSENT:
                size += len(value)
        if size < _SMALLEST_BYTES or size > self._limit:
            return
        self.rows[relid, key] = (row, size)
        self._size += size
        while self._size > self._limit:
            oldest = next(iter(self.rows))
            self._size -= self.rows.pop(oldest)[1]

    def forget(self, relid: int, key: bytes) -> None:
        """The row is gone, or changed in a way that is not known."""
        known = self.rows.pop((relid, key), None)
        if known is not None:
            self._size -= known[1]

    def fill(self, relid: int, key: bytes, row: Row, missing: Sequence[int]) -> tuple[Row, Missing]:
        """Fill what is missing in ``row`` from the row's earlier event.

        Args:
            relid: The relation.
            key: The key that the row had before this change.
            row: With UNSENT at ``missing``.
            missing: Indexes.

        Returns:
            The row, and the indexes that are still missing.
        """
        known = self.rows.get((relid, key))
        if known is None:
            return row, tuple(missing)
        earlier = known[0]
        filled = list(row)
        for i in missing:
            # A column added within the transaction makes the earlier row shorter.
            if i < len(earlier):
                filled[i] = earlier[i]
        return filled, tuple(i for i in missing if filled[i] is UNSENT)

    def clear(self) -> None:
        """The transaction has ended, or a table was emptied."""
        self.rows.clear()
        self._size = 0


Missing = tuple[int, ...]


class Guesses:
    """Which values a replay behind chunks re-read that may be of a later moment, or another row.

    Attributes:
        copied_at: LSN below which the log may have later rows than the event before, because
            chunks have them. 0: of none.
        exact_from: Likewise because re-reads had later values.
        any: Whether a value was re-read below these, since ``exact_from`` was told.
    """

    def __init__(self) -> None:
        self.copied_at = self.exact_from = 0
        self.any = False

    def inherited(
        self, lsn: int, row: Row, missing: tuple[int, ...], *, moved: bool
    ) -> tuple[int, ...]:
        """The columns whose values readers are to take from the row before, if they have it.

        Args:
            lsn: Of the event's transaction.
            row: As re-read.
            missing: The columns that were re-read.
            moved: The event changes the key.
        """
        # What was guessed since ``exact_from`` was told is below no LSN that is known yet.
        if lsn >= self.exact_from and not self.any:
            return missing
        if not moved:
            self.any |= lsn < self.copied_at
            return missing
        # What the log has under the old key may be another row, which has taken the key since.
        self.any = True
        return tuple(i for i in missing if row[i] is UNSENT)
