"""Which partition of a topic a key lives in. Pure.

A key never leaves its partition: snapshot, stream and every later run agree on this.
"""

from __future__ import annotations

from zlib import crc32


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record key; librdkafka's default partitioner chooses the same."""
    return crc32(key) % partitions
