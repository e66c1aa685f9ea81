"""What capture and the first load tell each other: connectors and snapshots meet only here.

Capture creates the slot and keeps its exported snapshot alive; the loader copies the tables
into their topics and returns when every record is acknowledged and committed in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdc.envelope import Origin
from cdc.frontier import Ends
from cdc.names import TableId
from cdc.schema import TableSchema


@dataclass(frozen=True, slots=True)
class LoadTask:
    """One table to copy.

    Args:
        schema: Version 1 of the load's schema, read in the exported snapshot; exactly these
            columns are copied, in this order.
        filenode: ``pg_relation_filenode`` in the snapshot. A rewrite or a truncate since then
            hides rows from the snapshot, so the copier locks the table (ACCESS SHARE) and then
            compares; a difference is SourceError ``table_rewritten``.
        topic: Empty topic of this load.
        partitions: Of the topic.
    """

    schema: TableSchema
    filenode: int
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """All tables of a source's first load.

    Args:
        project: For the transactional ids of the workers.
        source: The source's name.
        conninfo: libpq keywords of the source, password included.
        snapshot: Name of the exported snapshot.
        consistent_point: The slot's consistent point, as an LSN.
        epoch: Of the source's history.
        origin: What every envelope says of where it comes from.
        bootstrap_servers: Of the log.
        log_options: librdkafka's security options.
        tasks: The tables.
        workers: How many copy at once.
    """

    project: str
    source: str
    conninfo: Mapping[str, Any] = field(repr=False)
    snapshot: str
    consistent_point: int
    epoch: int
    origin: Origin
    bootstrap_servers: str
    log_options: Mapping[str, str] = field(repr=False)
    tasks: tuple[LoadTask, ...]
    workers: int


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Rows of a table that are in the log so far.

    Args:
        table: The table.
        rows: Copied so far.
        estimate: The planner's guess of all its rows; None if it has none.
        done: Whether this was the last of it.
    """

    table: TableId
    rows: int
    estimate: int | None
    done: bool


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What is in the log now.

    Args:
        rows: By table, 0 included.
        ends: Next offset of every partition that was written to.
    """

    rows: Mapping[TableId, int]
    ends: Ends


#: Told about every second, also when nothing moved; may raise, which ends the load: the
#: loader then ends its workers and lets the exception pass.
OnProgress = Callable[[LoadProgress], None]

#: Copies all tasks and returns when all is committed in Kafka; on any failure it ends its
#: workers and raises a CdcError, and the load counts as unfinished.
Loader = Callable[[LoadRequest, OnProgress], LoadResult]
