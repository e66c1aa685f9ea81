"""The first load: every table of a source into its topic, as of one exported snapshot.

Looks at the tables, plans ranges of blocks, and hands them to worker processes. The exporter
of the snapshot has to stay connected until this returns. A load that fails leaves nothing
running; what it wrote is of no use, since nobody reads a topic before its table is Ready.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing

import structlog

from cdc.errors import CdcError, LogError
from cdc.frontier import Ends
from cdc.load import LoadProgress, LoadRequest, LoadResult, LoadTask, OnProgress
from cdc.log.admin import LogAdmin
from cdc.names import MAX_SNAPSHOT_WORKERS, TableId
from snapshots.messages import Done, Failed, Ready, WorkerSetup, Written
from snapshots.plan import RANGE_BYTES, BlockRange, plan_ranges
from snapshots.pool import Worker, WorkerPool
from snapshots.source import check_table, lock_tables, measure, open_snapshot

log = structlog.get_logger(__name__)

_TICK_SECONDS = 0.5
_SHOW_SECONDS = 0.2


def run_exported_load(
    request: LoadRequest, on_progress: OnProgress, *, range_bytes: int = RANGE_BYTES
) -> LoadResult:
    """Copy all tables and return when every record is committed in Kafka.

    Workers die with the thread that calls this.

    Args:
        request: What to copy, from where to where.
        on_progress: Called about every second; may raise, which ends the load.
        range_bytes: What one range should hold.

    Raises:
        CdcError: The first failure, after all workers have ended.
    """
    if not request.tasks:
        return LoadResult({}, {})
    try:
        return _run(request, on_progress, range_bytes)
    except CdcError as error:
        if error.table is not None:
            error.table = f"{request.source}.{error.table}"
        raise


def _run(request: LoadRequest, on_progress: OnProgress, range_bytes: int) -> LoadResult:
    limit = _message_limit(request)
    ranges, estimates = _survey(request, range_bytes)
    progress = _Progress(request.tasks, ranges, estimates, on_progress)
    count = max(1, min(request.workers, MAX_SNAPSHOT_WORKERS, len(ranges)))
    log.info("load begins", tables=len(request.tasks), ranges=len(ranges), workers=count)
    taken_us = time.time_ns() // 1000
    ends: Ends = {}
    with WorkerPool() as pool:
        for number in range(1, count + 1):
            pool.start(_setup(request, number, limit, taken_us))
        _copy_all(pool, deque(ranges), ends, progress)
        pool.drain()
    log.info("load done", tables=len(request.tasks), rows=sum(progress.rows))
    return LoadResult(
        {task.schema.id: rows for task, rows in zip(request.tasks, progress.rows, strict=True)},
        ends,
    )


def _copy_all(
    pool: WorkerPool, waiting: deque[BlockRange], ends: Ends, progress: _Progress
) -> None:
    """Hand out the ranges and take what the workers say until all ranges are done."""
    at_work: dict[int, BlockRange] = {}
    left = len(waiting)

    def hand_out(worker: Worker) -> None:
        if waiting:
            at_work[worker.number] = blocks = waiting.popleft()
            worker.give(blocks)

    while left:
        for worker, message in pool.messages(_TICK_SECONDS):
            match message:
                case Ready():
                    hand_out(worker)
                case Written(rows):
                    progress.written(worker.number, at_work[worker.number], rows)
                case Done(rows, range_ends):
                    progress.done(worker.number, at_work.pop(worker.number), rows)
                    _merge(ends, range_ends)
                    left -= 1
                    hand_out(worker)
                case Failed(error):
                    log.warning("snapshot worker failed", number=worker.number, code=error.code)
                    raise error
                case None:
                    blocks = at_work.get(worker.number)
                    raise worker.died(progress.table(blocks) if blocks else None)
        progress.tick()


def _survey(request: LoadRequest, range_bytes: int) -> tuple[list[BlockRange], list[int | None]]:
    """Check all tables before the first row is read, and plan their ranges."""
    name = f"cdc {request.source} snapshot"
    with closing(open_snapshot(request.conninfo, request.snapshot, name)) as connection:
        lock_tables(connection, request.tasks)
        for task in request.tasks:
            check_table(connection, task)
        sizes, estimates = measure(connection, request.tasks)
        return plan_ranges(sizes, connection.info.server_version, range_bytes), estimates


def _message_limit(request: LoadRequest) -> int:
    """The smallest limit of the topics, in bytes; they are checked on the way."""
    admin = LogAdmin(request.bootstrap_servers, request.log_options)
    found = admin.describe_all(task.topic for task in request.tasks)
    for task in request.tasks:
        info = found.get(task.topic)
        if info is None or info.partitions != task.partitions:
            what = "is not on the broker" if info is None else "has other partitions"
            raise LogError(
                "topic_differs",
                f"topic {task.topic} of the load {what}",
                table=str(task.schema.id),
                remedy="start again: the load begins anew",
            )
    return min(info.max_message_bytes for info in found.values())


def _setup(request: LoadRequest, number: int, limit: int, taken_us: int) -> WorkerSetup:
    return WorkerSetup(
        number=number,
        project=request.project,
        source=request.source,
        conninfo=request.conninfo,
        snapshot=request.snapshot,
        consistent_point=request.consistent_point,
        epoch=request.epoch,
        taken_us=taken_us,
        origin=request.origin,
        bootstrap_servers=request.bootstrap_servers,
        log_options=request.log_options,
        max_message_bytes=limit,
        tasks=request.tasks,
    )


def _merge(ends: Ends, more: Ends) -> None:
    for topic, partitions in more.items():
        known = ends.setdefault(topic, {})
        for partition, end in partitions.items():
            known[partition] = max(end, known.get(partition, 0))


class _Progress:
    """Counts rows by table and tells about them, not too often and not too rarely."""

    def __init__(
        self,
        tasks: Sequence[LoadTask],
        ranges: Sequence[BlockRange],
        estimates: Sequence[int | None],
        on_progress: OnProgress,
    ) -> None:
        self._tasks = tasks
        self._estimates = estimates
        self._on_progress = on_progress
        #: Rows of finished ranges, by table.
        self.rows = [0] * len(tasks)
        self._left = [0] * len(tasks)
        for blocks in ranges:
            self._left[blocks.table] += 1
        # Worker number → table and rows of its range so far.
        self._partial: dict[int, tuple[int, int]] = {}
        self._shown = 0.0
        self._newest = ranges[0].table

    def table(self, blocks: BlockRange) -> TableId:
        return self._tasks[blocks.table].schema.id

    def written(self, worker: int, blocks: BlockRange, rows: int) -> None:
        self._partial[worker] = blocks.table, rows
        self._newest = blocks.table
        if time.monotonic() - self._shown >= _SHOW_SECONDS:
            self._show(blocks.table)

    def done(self, worker: int, blocks: BlockRange, rows: int) -> None:
        self._partial.pop(worker, None)
        self.rows[blocks.table] += rows
        self._left[blocks.table] -= 1
        self._newest = blocks.table
        if not self._left[blocks.table] or time.monotonic() - self._shown >= _SHOW_SECONDS:
            self._show(blocks.table)

    def tick(self) -> None:
        # A table that is done was told of when it was, and only then.
        unfinished = [table for table, left in enumerate(self._left) if left]
        if unfinished and time.monotonic() - self._shown >= _TICK_SECONDS:
            self._show(self._newest if self._newest in unfinished else unfinished[0])

    def _show(self, table: int) -> None:
        self._shown = time.monotonic()
        partial = sum(rows for of, rows in self._partial.values() if of == table)
        self._on_progress(
            LoadProgress(
                self._tasks[table].schema.id,
                self.rows[table] + partial,
                self._estimates[table],
                not self._left[table],
            )
        )
