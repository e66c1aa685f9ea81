"""Plans a load: tables by size, cut into ranges of blocks that cover each exactly once. Pure.

A range is read with ``ctid >= '(first,0)' AND ctid < '(end,0)'``, a TID range scan: it reads
the blocks of the range alone, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Bytes of a range, TOAST included.
RANGE_BYTES = 32 * 1024 * 1024
#: Servers before this read ``ctid`` ranges by a scan of the whole table.
TID_RANGE_VERSION = 140_000


@dataclass(frozen=True, slots=True)
class TableSize:
    """What a table occupies.

    Args:
        table: Index of the table in its load.
        blocks: Of the main fork.
        total_bytes: Main fork and TOAST.
    """

    table: int
    blocks: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks of one table: the unit of work of a copy.

    Args:
        table: Index of the table in its load.
        first: First block; 0 for the first range.
        end: Block after the last one; None for the last range, which is open-ended, because
            the table may have grown since it was measured.
    """

    table: int
    first: int
    end: int | None

    @property
    def whole(self) -> bool:
        """Whether this is the whole table."""
        return self.first == 0 and self.end is None


def plan_ranges(
    sizes: Iterable[TableSize], server_version: int, range_bytes: int = RANGE_BYTES
) -> list[BlockRange]:
    """Cut tables into ranges, the largest tables first so that they do not end last.

    Args:
        sizes: Of all tables of a load.
        server_version: As libpq gives it, 150004.
        range_bytes: What a range should hold; a range is one block at the least.
    """
    ranges = []
    for size in sorted(sizes, key=lambda s: (-s.total_bytes, s.table)):
        step = _blocks_per_range(size, range_bytes)
        firsts = range(0, max(size.blocks, 1), step)
        if server_version < TID_RANGE_VERSION:
            firsts = range(0, 1)
        for first in firsts:
            end = first + step if first != firsts[-1] else None
            ranges.append(BlockRange(size.table, first, end))
    return ranges


def _blocks_per_range(size: TableSize, range_bytes: int) -> int:
    if size.blocks == 0 or size.total_bytes == 0:
        return 1
    return max(1, range_bytes * size.blocks // size.total_bytes)
