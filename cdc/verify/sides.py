"""What source and derived table answer when they are compared. Protocols only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from cdc.schema import TableSchema

#: Canonical texts of a key, in the key's order.
Key = tuple[str | None, ...]
#: Canonical texts of a row, in the order of the schema's columns.
Row = tuple[str | None, ...]


class Sum(NamedTuple):
    """A range of one side: how many rows, and the sum of their digests."""

    rows: int
    total: int


class Side(Protocol):
    """One table as of the position that is compared."""

    def sums(self) -> dict[int, Sum]:
        """Of each range that has rows."""

    def values(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """The rows of a few keys; those that are not there are left out."""


class SourceTable(Side, Protocol):
    """A table at the source, which nobody can alter meanwhile.

    Attributes:
        notes: What is not compared, for people.
    """

    notes: tuple[str, ...]

    def rows(self, ranges: Sequence[int]) -> Iterator[list[tuple[str | None, ...]]]:
        """Key and digest (last) of every row of some ranges, in batches."""

    def cancel(self) -> None:
        """End what another thread is asking; it gets an error."""


class SourceSnapshot(Protocol):
    """A source as of one position, held until it is closed.

    Attributes:
        consistent_point: LSN; exactly the transactions whose commit record starts below it
            are visible.
        sysid: The server's system identifier.
    """

    consistent_point: int
    sysid: str

    def table(self, schema: TableSchema) -> AbstractContextManager[SourceTable]:
        """Open one table, one at a time.

        Raises:
            SourceError: ``table_altered``: it was dropped, renamed, truncated, rewritten or
                altered so that it cannot be read as of the position.
        """

    def nudge(self) -> None:
        """Have the server tell its position to whoever streams from it, though it is quiet."""


class OpenSource(Protocol):
    """Takes the snapshot of a source."""

    def __call__(self, source: str) -> AbstractContextManager[SourceSnapshot]:
        """Open the source of this name in cdc.yaml."""


def row_count(sums: Mapping[int, Sum]) -> int:
    """Rows of all ranges."""
    return sum(part.rows for part in sums.values())
