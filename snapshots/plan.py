"""Cuts a table into chunks of blocks that cover it exactly once. Pure.

A chunk is read with ``ctid >= '(first,0)' AND ctid < '(end,0)'``, a TID range scan: it reads the
blocks of the chunk alone, whatever the size of the table.
"""

from __future__ import annotations

from cdc.load import ChunkPlan

#: Bytes of a chunk, TOAST included: a second or two of work. With 8 MiB the cost of a row is the
#: same as with 64; smaller chunks spread better over workers, and less is copied again.
CHUNK_BYTES = 32 * 1024 * 1024
#: Servers before this read ``ctid`` ranges by a scan of the whole table.
TID_RANGE_VERSION = 140_000


def plan_chunks(
    blocks: int, total_bytes: int, server_version: int, chunk_bytes: int = CHUNK_BYTES
) -> ChunkPlan:
    """Cut a table.

    Args:
        blocks: Of the main fork; it may have grown or shrunk when the chunks are read.
        total_bytes: Main fork and TOAST.
        server_version: As libpq gives it, 150004.
        chunk_bytes: What a chunk should hold; a chunk is one block at the least.
    """
    if blocks == 0 or total_bytes == 0 or server_version < TID_RANGE_VERSION:
        return ChunkPlan(max(blocks, 1), 1)
    step = max(1, chunk_bytes * blocks // total_bytes)
    return ChunkPlan(step, -(-blocks // step))
