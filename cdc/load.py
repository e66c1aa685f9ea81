"""What capture and the copier tell each other: connectors and snapshots meet only here.

Capture decides which tables are loaded, when chunks may be read, and what counts as done; the
copier reads chunks in worker processes and writes their rows to the load's topic. Why the two
together converge is in docs/decisions/0003.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cdc.envelope import Origin
from cdc.errors import CdcError
from cdc.frontier import Ends
from cdc.names import TableId
from cdc.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a table that is cut evenly: chunk n of it is the blocks [n * step, (n + 1) * step).

    Args:
        step: Blocks of a chunk.
        count: Number of chunks; the last one is open-ended, because the part may grow.
        leaves: Relation ids of the partitions that it is: one, or several small ones, which are
            one chunk together. Empty: the table itself, with all of its partitions if it has any.
    """

    step: int
    count: int
    leaves: tuple[int, ...] = ()

    def blocks(self, chunk: int) -> tuple[int, int | None]:
        """First block of a chunk, and the block after it (None: to the end)."""
        first = chunk * self.step
        return first, None if chunk == self.count - 1 else first + self.step


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How a table is cut: the chunks of its pieces, one piece after the other.

    Pinned in control when the load begins, so that a chunk means the same after a restart.

    Args:
        pieces: At least one; only partitioned tables have more.
    """

    pieces: tuple[Piece, ...]

    @classmethod
    def whole(cls, step: int, count: int) -> ChunkPlan:
        """Of a table that is one piece."""
        return cls((Piece(step, count),))

    @property
    def count(self) -> int:
        """Number of chunks."""
        return sum(piece.count for piece in self.pieces)

    @property
    def size(self) -> int:
        """About how many blocks all chunks have."""
        return sum(piece.step * piece.count for piece in self.pieces)

    def find(self, chunk: int) -> tuple[Piece, int]:
        """The piece that a chunk belongs to, and its number in there."""
        for piece in self.pieces:
            if chunk < piece.count:
                return piece, chunk
            chunk -= piece.count
        raise IndexError("no such chunk")


@dataclass(frozen=True, slots=True)
class Measure:
    """What the catalog says of a table before it is copied.

    Args:
        plan: How to cut it.
        rows: The planner's guess of its rows; None if it has none.
        total_bytes: Main fork and TOAST.
    """

    plan: ChunkPlan
    rows: int | None
    total_bytes: int


@dataclass(frozen=True, slots=True)
class LoadTask:
    """One table to copy, or what is left of it.

    Args:
        schema: Version 1 of the load's schema; exactly these columns are copied, in this
            order. Its load number tells loads of one table apart.
        filenode: The table's file when the load began, see ``cdc.source_sql``. A rewrite moves
            rows between chunks, so each chunk locks the table (ACCESS SHARE) and then compares; a
            difference fails the load with SourceError ``table_rewritten``.
        topic: Of this load.
        partitions: Of the topic.
        spool_from: S0 of the load, an LSN: rows get the position (epoch, S0 - 1, FFFFFFFF).
        plan: How the table is cut.
        left: Chunks that are not yet done, in the order to copy them.
        priority: Loads with a higher one are copied first.
    """

    schema: TableSchema
    filenode: int
    topic: str
    partitions: int
    spool_from: int
    plan: ChunkPlan
    left: tuple[int, ...]
    priority: int = 0

    @property
    def key(self) -> LoadKey:
        """The table and the number of its load."""
        return self.schema.id, self.schema.load


LoadKey = tuple[TableId, int]


@dataclass(frozen=True, slots=True)
class CopySettings:
    """What all loads of a source share.

    Args:
        project: For the transactional ids of the workers.
        source: For the transactional ids of the workers.
        conninfo: libpq keywords of the source, password included.
        epoch: Of the source's history.
        origin: What every envelope says of where it comes from.
        bootstrap_servers: Of the log.
        log_options: librdkafka's security options.
        workers: How many chunks are copied at once: processes and connections.
        rows_per_second: Of all workers together; None: as fast as they can.
    """

    project: str
    source: str
    conninfo: Mapping[str, Any] = field(repr=False)
    epoch: int
    origin: Origin
    bootstrap_servers: str
    log_options: Mapping[str, str] = field(repr=False)
    workers: int
    rows_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """Progress of a chunk: so many of its rows are committed in Kafka, the chunk is not done."""

    load: LoadKey
    chunk: int
    rows: int


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """All rows of a chunk are committed in Kafka, and its transaction at the source has ended.

    Args:
        load: Of the chunk.
        chunk: Its number.
        rows: That it held.
        ends: Next offset of every partition that it was written to.
        snapshot: Of its transaction, ``pg_current_snapshot()``, if its table has no key.
    """

    load: LoadKey
    chunk: int
    rows: int
    ends: Ends
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """A load cannot go on; its other chunks are no longer copied, nothing of it runs any more.

    Args:
        load: That failed.
        error: Why; SourceError ``table_rewritten``, ``table_changed`` and ``load_interrupted``
            (the table has no key, and a part of it may be in the topic) mean that a new load has
            to begin.
    """

    load: LoadKey
    error: CdcError


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Rows of a table that are in the log so far.

    Args:
        table: The table.
        rows: Copied so far.
        estimate: The planner's guess of all its rows; None if it has none.
        done: Whether the table is Ready.
    """

    table: TableId
    rows: int
    estimate: int | None
    done: bool


CopierEvent = Written | ChunkDone | LoadFailed


class Copier(Protocol):
    """Copies chunks in worker processes; never blocks for long.

    A worker that dies or loses a connection is replaced and its chunk is copied again, after
    its transactional id was fenced; the workers die with this process. A table without a key is
    one chunk, which is not copied again: its load fails.
    """

    def measure(self, schemas: Sequence[TableSchema]) -> list[Measure]:
        """Size up tables from the catalog alone, in one query.

        Raises:
            CdcError: No connection; SourceRefused ``table_missing``, ``not_a_table``.
        """

    def begin(self, task: LoadTask) -> None:
        """Copy what is left of a load, after those of its priority that were begun before."""

    def cancel(self, load: LoadKey) -> None:
        """Stop copying a load; returns when nothing writes to its topic any more.

        Raises:
            CdcError: Kafka does not answer, so that is not known; to be called again.
        """

    def poll(self, seconds: float = 0.0) -> list[CopierEvent]:
        """What has happened since the last call; waits up to ``seconds`` for the first event.

        Raises:
            CdcError: Nothing can be copied at all, such as a fenced producer (another capture
                of this source runs).
        """

    @property
    def busy(self) -> bool:
        """Whether any chunk is being copied or waits for it."""

    def close(self) -> None:
        """End all workers."""


#: Makes the copier of a source; its workers start with the first chunk.
MakeCopier = Callable[[CopySettings], Copier]
