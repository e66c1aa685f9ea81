"""Capture as a process, as the daemon starts it, but with chunks of a few blocks.

``python -m tests.support.small_chunks --config … --source …``: a table of a few thousand rows has
dozens of chunks then, so that a load of seconds can be killed between them.
"""

from __future__ import annotations

import sys

import snapshots.copier
from cdc.daemon import capture_child
from cdc.load import CopySettings

CHUNK_BYTES = 64 * 1024


class SmallChunkCopier(snapshots.copier.ChunkCopier):
    """The copier, with its workers, of small chunks."""

    def __init__(self, settings: CopySettings) -> None:
        super().__init__(settings, snapshots.copier.Tuning(chunk_bytes=CHUNK_BYTES))


if __name__ == "__main__":
    # capture_child imports it only when it runs.
    snapshots.copier.ChunkCopier = SmallChunkCopier  # type: ignore[assignment, misc]
    sys.exit(capture_child.main())
