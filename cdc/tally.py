"""What a range of the log does to a table without a key: how often each row came and went. Pure.

The sum over distinct positions does not depend on the order of records, nor on how often one was
delivered. With the counts that a replica holds, it becomes records of *copies*, each with a key
of its own, which are folded like those of any other table: see docs/decisions/0005.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.counted import DIGEST_LENGTH, MINUS_HEADER, PLUS_HEADER, copy_key
from cdc.envelope import POSITION_HEADER
from cdc.errors import LogError
from cdc.position import Position

#: Offset, key, value and headers of a record.
Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]] | None]
#: The same of a copy, which has a key of its own.
Copy = tuple[int, bytes, bytes | None, list[tuple[str, bytes]] | None]

_POSITION: Final = re.compile(rb"[0-9A-F]{4}-[0-9A-F]{16}-[0-9A-F]{8}")
_DIGEST: Final = re.compile(rb"[0-9a-f]{%d}" % DIGEST_LENGTH)
#: Of the Python objects that stand for a position, and for a row.
_POSITION_BYTES: Final = 140
_ROW_BYTES: Final = 500


@dataclass(slots=True)
class _Row:
    """One row: by how much its count changes, and a record that names it.

    The newest one that brought it while there are more copies; else any, without its value.
    """

    change: int
    partition: int
    record: Record
    brought: bytes = b""


class Tally:
    """Counts the records of a range, in any order.

    Args:
        table: ``source.schema.table``, for messages.
        topic: For messages.
        frontier: F, exclusive.
        truncate: The newest truncate below F; records below it are void.
        start: P: records below it are left out; None: from the beginning.
    """

    def __init__(
        self,
        table: str,
        topic: str,
        frontier: Position,
        truncate: Position | None = None,
        start: Position | None = None,
    ) -> None:
        self._table = table
        self.topic = topic
        self._end = str(frontier).encode()
        self._lowest = max(b"" if p is None else str(p).encode() for p in (truncate, start))
        self._seen: set[bytes] = set()
        self._rows: dict[bytes, _Row] = {}
        self._value_bytes = 0
        #: Records that were taken, also those that do not count.
        self.read = 0

    @property
    def size(self) -> int:
        """Memory that it takes, about."""
        return len(self._seen) * _POSITION_BYTES + len(self._rows) * _ROW_BYTES + self._value_bytes

    @property
    def changes(self) -> dict[str, int]:
        """Digests of rows whose count changes, and by how much."""
        return {d.decode(): row.change for d, row in self._rows.items() if row.change}

    def add(self, partition: int, records: Sequence[Record]) -> None:
        """Take records of a partition.

        Raises:
            LogError: ``bad_record``.
        """
        self.read += len(records)
        for record in records:
            fields = dict(record[3] or ())
            position = fields.get(POSITION_HEADER, b"")
            plus, minus = fields.get(PLUS_HEADER), fields.get(MINUS_HEADER)
            named = [digest for digest in (plus, minus) if digest is not None]
            if (
                _POSITION.fullmatch(position) is None
                or not named
                or not all(map(_DIGEST.fullmatch, named))
                or record[2] is None
            ):
                raise self._bad_record(partition, record[0])
            if position >= self._end or position < self._lowest or position in self._seen:
                continue
            self._seen.add(position)
            if plus is not None:
                self._count(plus, 1, position, partition, record)
            if minus is not None:
                self._count(minus, -1, position, partition, record)

    def copies(self, held: Mapping[str, int]) -> Iterator[tuple[int, Copy]]:
        """Partition and record of every copy that comes or goes, each with a key of its own.

        Args:
            held: How many copies of a row there are at the start of the range, by digest;
                rows that are not there may be left out.

        Yields:
            A record that brings the row, or one without a value where a copy goes.

        Raises:
            LogError: ``row_missing``: a row would be there less than not at all.
        """
        missing = sum(
            -(held.get(digest, 0) + change)
            for digest, change in self.changes.items()
            if held.get(digest, 0) + change < 0
        )
        if missing:
            raise row_missing(self._table, missing)
        for digest, row in self._rows.items():
            name = digest.decode()
            before = held.get(name, 0)
            after = before + row.change
            offset, _, value, headers = row.record
            brought = value if row.change > 0 else None
            for copy in range(min(before, after) + 1, max(before, after) + 1):
                yield row.partition, (offset, copy_key(name, copy).encode(), brought, headers)

    # --- inside ---

    def _count(
        self, digest: bytes, sign: int, position: bytes, partition: int, record: Record
    ) -> None:
        row = self._rows.get(digest)
        if row is None:
            row = self._rows[digest] = _Row(0, partition, _without_value(record))
        row.change += sign
        if row.change <= 0:
            # What makes it positive again brings the value again.
            self._keep(row, b"", partition, _without_value(record))
        elif sign > 0 and position > row.brought:
            self._keep(row, position, partition, record)

    def _keep(self, row: _Row, brought: bytes, partition: int, record: Record) -> None:
        self._value_bytes += len(record[2] or b"") - len(row.record[2] or b"")
        row.brought, row.partition, row.record = brought, partition, record

    def _bad_record(self, partition: int, offset: int) -> LogError:
        return LogError(
            "bad_record",
            f"record {self.topic}[{partition}]@{offset} is not one of a table without a key",
            table=self._table,
            remedy="only capture may write this topic; rebuild it with a new load",
        )


def row_missing(table: str, count: int) -> LogError:
    """The error for rows that go and were not there."""
    return LogError(
        "row_missing",
        f"the log takes away {count} rows that were not there: it does not hold what the source "
        "held, such as a row whose text has changed without an event",
        table=table,
        remedy=f"cdc snapshot {table}: a new load of the table",
    )


def _without_value(record: Record) -> Record:
    return record[0], record[1], None, record[3]
