"""Re-reads for the router: one query serves later updates of the batch, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.envelope import BadValue
from cdc.schema import TableSchema
from connectors.postgres.lookahead import row_key, upcoming
from connectors.postgres.messages import Row
from connectors.postgres.reread import Values, Wanted
from connectors.postgres.routes import Source

#: Rows that one query re-reads: at first, at most, and bytes that they may hold.
_FIRST, _ROWS, _BYTES = 8, 500, 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Read:
    """Values of one row that were read: what was asked for, and what was there."""

    schema: TableSchema
    columns: tuple[int, ...]
    found: Values

    def has(self, columns: tuple[int, ...]) -> bool:
        return set(columns) <= set(self.columns)


class ReadAhead:
    """Values that are known to be needed soon.

    Args:
        source: Re-reads rows.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._batch: Sequence[bytes] = ()
        self._known: dict[int, _Read] = {}
        self._rows = _FIRST

    def take(self, batch: Sequence[bytes]) -> None:
        """The CopyData messages from which the next changes come."""
        self._batch = batch
        if self._known:
            self._known = {}

    def fill(
        self, schema: TableSchema, row: Row, missing: tuple[int, ...], index: int, xid: int
    ) -> Row:
        """The row with what could be re-read of the missing columns.

        Args:
            schema: Of the row.
            row: After an update.
            missing: Indexes of the columns to re-read.
            index: Of the update's message in the batch.
            xid: Of its transaction.

        Raises:
            BadValue: A key column without a value.
            CdcError: From Postgres.
        """
        values = self._known.pop(index, None)
        if values is None or values.schema is not schema or not values.has(missing):
            values = self._query(schema, row, missing, index, xid)
        filled = list(row)
        for i, value in values.found.items():
            if i in missing:
                filled[i] = value
        return tuple(filled)

    def _query(
        self, schema: TableSchema, row: Row, missing: tuple[int, ...], index: int, xid: int
    ) -> _Read:
        """Read the row, and on the way those of later updates in the batch."""
        key = row_key(schema, row)
        if key is None:
            raise BadValue(", ".join(schema.key), "a key column without a value")
        later = upcoming(self._batch, index, schema, xid, self._rows - 1)
        wanted = [Wanted(key, xid), *later.values()]
        answers = self._source.reread(schema, missing, wanted)
        self._known = {
            i: _Read(schema, missing, found)
            for i, found in zip(later, answers[1:], strict=False)
            if found is not None
        }
        size = sum(
            len(value) for found in answers for value in (found or {}).values() if value is not None
        )
        # Large values are read few at a time.
        fitting = _BYTES * len(answers) // max(size, 1)
        self._rows = max(1, min(2 * self._rows, fitting, _ROWS))
        first = answers[0]
        assert first is not None  # noqa: S101 - ``reread`` waits for it
        return _Read(schema, missing, first)
