"""Cuts a table into chunks of blocks that cover it exactly once. Pure.

A chunk is read with ``ctid >= '(first,0)' AND ctid < '(end,0)'``, a TID range scan: it reads the
blocks of the chunk alone, whatever the size of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc.load import ChunkPlan, Piece

#: Bytes of a chunk, TOAST included: a second or two of work. With 8 MiB the cost of a row is the
#: same as with 64; smaller chunks spread better over workers, and less is copied again.
CHUNK_BYTES = 32 * 1024 * 1024
#: Servers before this read ``ctid`` ranges by a scan of the whole table.
TID_RANGE_VERSION = 140_000
#: Leaves that one query reads at the most: each costs the server memory and time to plan.
MOST_LEAVES = 64


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition that has rows itself.

    Args:
        relid: Its relation id.
        blocks: Of its main fork; it may have grown or shrunk when the chunks are read.
        total_bytes: Main fork and TOAST.
    """

    relid: int
    blocks: int
    total_bytes: int


def plan_chunks(
    blocks: int, total_bytes: int, server_version: int, chunk_bytes: int = CHUNK_BYTES
) -> ChunkPlan:
    """Cut a table that is one piece.

    Args:
        blocks: Of the main fork; it may have grown or shrunk when the chunks are read.
        total_bytes: Main fork and TOAST.
        server_version: As libpq gives it, 150004.
        chunk_bytes: What a chunk should hold; a chunk is one block at the least.
    """
    return ChunkPlan.whole(*_cut(blocks, total_bytes, server_version, chunk_bytes))


def plan_leaves(
    leaves: Sequence[Leaf], server_version: int, chunk_bytes: int = CHUNK_BYTES
) -> ChunkPlan:
    """Cut a partitioned table, leaf by leaf; small ones are put together, up to a chunk's size.

    Args:
        leaves: At least one.
        server_version: As libpq gives it.
        chunk_bytes: What a chunk should hold.
    """
    pieces: list[Piece] = []
    together: list[Leaf] = []
    room = chunk_bytes
    for leaf in leaves:
        if leaf.total_bytes > chunk_bytes // 2:
            step, count = _cut(leaf.blocks, leaf.total_bytes, server_version, chunk_bytes)
            pieces.append(Piece(step, count, (leaf.relid,)))
            continue
        if leaf.total_bytes > room or len(together) == MOST_LEAVES:
            pieces.append(_joined(together))
            together, room = [], chunk_bytes
        together.append(leaf)
        room -= leaf.total_bytes
    if together:
        pieces.append(_joined(together))
    return ChunkPlan(tuple(pieces))


def _joined(leaves: Sequence[Leaf]) -> Piece:
    blocks = sum(leaf.blocks for leaf in leaves)
    return Piece(max(blocks, 1), 1, tuple(leaf.relid for leaf in leaves))


def _cut(blocks: int, total_bytes: int, server_version: int, chunk_bytes: int) -> tuple[int, int]:
    """Blocks of a chunk, and number of chunks."""
    if blocks == 0 or total_bytes == 0 or server_version < TID_RANGE_VERSION:
        return max(blocks, 1), 1
    step = max(1, chunk_bytes * blocks // total_bytes)
    return step, -(-blocks // step)
