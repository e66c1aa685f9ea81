"""Applies the log to replicas, frontier by frontier.

Per table: P = the replica's recorded progress, F = the newest frontier; what lies in [P, F) is
folded to one row per key and written in one Delta commit that also records F. A table whose
topic has nothing new is valid at F as it is, without a commit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
from pyspark.sql import SparkSession

from cdc.codecs import TypePolicies
from cdc.errors import CdcError
from cdc.failpoints import failpoint
from cdc.lake import AppId, Replica, open_replica
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.names import TableId, lake_folder
from cdc.position import Position
from spark_jobs.base import BaseRows
from spark_jobs.direct_write import MOST_REWRITTEN
from spark_jobs.generation import Builder, build_generation
from spark_jobs.log_source import MOST_BYTES, SMALL_RANGE, Batch, fold_range
from spark_jobs.log_state import LogAddress, LogState, TablePlan, plan_table, read_log_state
from spark_jobs.merge import FEW_KEYS, Commit, write_batch
from spark_jobs.replica import add_columns, create_replica
from spark_jobs.session import worker_session

log = structlog.get_logger(__name__)

#: Tables that are applied at the same time.
WORKERS: Final = 2
#: A valid replica's position is recorded anew before it leaves the history window.
_REFRESH_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class TableResult:
    """What a pass did to a table.

    Args:
        table: ``source.schema.table``.
        frontier: The source's newest frontier.
        frontier_us: Highest commit time below it, µs since 1970 UTC.
        action: ``current`` (nothing to do), ``empty``, ``append``, ``overwrite``, ``replace``,
            ``merge``, ``rebuild`` (a newer load was switched in), or ``failed``.
        position: What the replica stands for now; the frontier when it is current.
        version: Delta's version; None when there is no table yet.
        keys: Keys that were written.
        behind_records: Offsets of the topic above the replica, at most; 0 when it is current.
        commit_us: Highest commit time below the position, µs since 1970 UTC.
        seconds: Time it took.
        error: Why it failed.
        more: Whether the next pass has something to do at once.
        out_of_range: As of ``CommitNote``.
    """

    table: str
    frontier: Position
    frontier_us: int
    action: str
    position: Position | None
    version: int | None
    keys: int = 0
    behind_records: int = 0
    commit_us: int | None = None
    seconds: float = 0.0
    error: CdcError | None = None
    more: bool = False
    out_of_range: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """How to apply.

    Args:
        lake: The lake's folder.
        max_records: Most offsets of one batch of a replica that exists already.
        small_range: Most offsets that the driver folds itself.
        most_bytes: Most memory that it takes for that, per table.
        few_keys: Most keys that are overwritten by literals rather than merged.
        most_rewritten: Most bytes of files that are written anew without Spark.
        history: The log's history window, seconds.
        policies: Source and table to what cdc.yaml says of its columns' types.
    """

    lake: str
    max_records: int = 500_000
    small_range: int = SMALL_RANGE
    most_bytes: int = MOST_BYTES
    few_keys: int = FEW_KEYS
    most_rewritten: int = MOST_REWRITTEN
    history: float = 7 * 86_400.0
    policies: Callable[[str, TableId], TypePolicies] = lambda source, table: TypePolicies()


class Applier:
    """Applies sources to one lake; its caller holds the lake's lock.

    Args:
        spark: The process's session.
        address: Of the log.
        settings: How to apply.
    """

    def __init__(self, spark: SparkSession, address: LogAddress, settings: ApplySettings) -> None:
        self._spark = spark
        self.address = address
        self.settings = settings
        self.admin: LogAdmin = address.admin()
        self._reader: LogReader = address.reader()
        self._local = threading.local()
        self._readers: list[LogReader] = []
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="apply")
        self._busy: dict[str, threading.Lock] = {}
        self._busy_guard = threading.Lock()

    def close(self) -> None:
        """Wait for what runs and let go of the clients."""
        self._pool.shutdown()
        for reader in (self._reader, *self._readers):
            reader.close()

    def path(self, source: str, table: TableId) -> str:
        """Folder of a replica."""
        return lake_folder(self.settings.lake, source, table.schema, table.table)

    def run_pass(
        self, sources: Iterable[str], *, stopping: Callable[[], bool] = lambda: False
    ) -> list[TableResult]:
        """Bring every replica to its source's newest frontier, as far as one batch each goes.

        Args:
            sources: Names of sources.
            stopping: Asked before each table; the rest is left out when it says so.

        Returns:
            One result per table that can be applied; a failed table does not stop the others.

        Raises:
            CdcError: The log as a whole cannot be read.
        """
        results: list[TableResult] = []
        for source in sources:
            state = self.log_state(self._reader, source)
            if state is None:
                continue
            tables = sorted(
                table
                for table, record in state.control.tables.items()
                if state.frontier_of(record) is not None
            )
            futures = [
                self._pool.submit(self._apply_guarded, state, table, stopping) for table in tables
            ]
            results += [done for future in futures if (done := future.result()) is not None]
        return results

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Keep apply away from a table (``source.schema.table``)."""
        with self._lock_of(name):
            yield

    def worker(self) -> tuple[SparkSession, LogReader]:
        """Session and reader of the calling thread."""
        if not hasattr(self._local, "session"):
            self._local.session = worker_session(self._spark)
            self._local.reader = self.address.reader()
            with self._busy_guard:
                self._readers.append(self._local.reader)
        return self._local.session, self._local.reader

    def builder(self) -> Builder:
        """What the calling thread builds generations with."""
        session, reader = self.worker()
        settings = self.settings
        return Builder(session, self.address, reader, settings.small_range, settings.most_bytes)

    def log_state(self, reader: LogReader, source: str) -> LogState | None:
        """A source's log as it is now."""
        return read_log_state(reader, source, partial(self.settings.policies, source))

    # --- inside ---

    def _lock_of(self, name: str) -> threading.Lock:
        with self._busy_guard:
            return self._busy.setdefault(name, threading.Lock())

    def _apply_guarded(
        self, state: LogState, table: TableId, stopping: Callable[[], bool]
    ) -> TableResult | None:
        name = f"{state.source}.{table}"
        lock = self._lock_of(name)
        # A table that is being rebuilt is left alone: its rebuild brings it up to date.
        if stopping() or not lock.acquire(blocking=False):
            return None
        started = time.monotonic()
        try:
            return self._apply(state, table, name, started)
        except CdcError as error:
            log.error("apply_failed", table=name, code=error.code, error=error.message)
            return self._failed(state, table, name, error, started)
        finally:
            lock.release()

    def _apply(self, state: LogState, table: TableId, name: str, started: float) -> TableResult:
        session, reader = self.worker()
        settings = self.settings
        replica = open_replica(self.path(state.source, table), table=name)
        if replica is not None and (load := state.older_load_of(table, replica.app)) is not None:
            return self._follow(state, table, name, replica, load, started)
        plan = plan_table(
            self.admin, reader, state, table, replica, max_records=settings.max_records
        )
        if plan is None:
            assert replica is not None  # noqa: S101 - without a replica there is always a plan
            return self._current(session, state, table, name, replica, started)
        app = str(replica.app) if replica is not None else _first_app(state, table)
        if replica is None:
            replica = create_replica(session, self.path(state.source, table), plan.layout, app)
            failpoint("after_create_replica")
        else:
            replica = add_columns(session, replica, plan.layout)
        planned = time.monotonic()
        base = None
        if plan.bounds.has_base:
            base = BaseRows(session, replica.path, replica.version, plan.layout)
        batch = fold_range(
            session,
            self.address,
            reader,
            plan,
            base,
            replica.path,
            small=settings.small_range,
            most_bytes=settings.most_bytes,
        )
        folded = time.monotonic()
        try:
            failpoint("before_delta_commit")
            how = write_batch(
                session,
                replica,
                plan.layout,
                batch,
                Commit(app, plan.note("apply", batch.out_of_range)),
                truncated=plan.bounds.truncated,
                loses_columns=plan.loses_columns,
                few_keys=settings.few_keys,
                most_rewritten=settings.most_rewritten,
            )
        finally:
            batch.release()
        log.debug(
            "timed",
            table=name,
            planned=round(planned - started, 2),
            folded=round(folded - planned, 2),
            written=round(time.monotonic() - folded, 2),
        )
        return self._done(state, table, name, plan, how, (batch.keys, batch.gone), started)

    def _follow(
        self,
        state: LogState,
        table: TableId,
        name: str,
        replica: Replica,
        load: int,
        started: float,
    ) -> TableResult:
        """A newer load was switched in: a new generation, from the topic of that load."""
        record = state.control.tables[table]
        log.info("new_load", table=name, load=record.load, replica_of_load=load)
        plan = plan_table(self.admin, self.worker()[1], state, table, None)
        assert plan is not None  # noqa: S101 - without a replica there is always a plan
        built = build_generation(self.builder(), plan, replica.path, replica)
        return self._done(state, table, name, plan, "rebuild", (built.rows, 0), started)

    def _done(
        self,
        state: LogState,
        table: TableId,
        name: str,
        plan: TablePlan,
        how: str,
        counts: tuple[int, int],
        started: float,
    ) -> TableResult:
        seconds = time.monotonic() - started
        keys, gone = counts
        log.info(
            "applied",
            table=name,
            how=how,
            position=str(plan.bounds.frontier),
            keys=keys,
            gone=gone,
            offsets=plan.offset_count,
            seconds=round(seconds, 2),
        )
        replica = open_replica(self.path(state.source, table), table=name)
        newest = state.view.ends.get(plan.record.topic, {})
        behind = sum(max(0, end - plan.ends.get(p, 0)) for p, end in newest.items())
        return TableResult(
            name,
            state.view.position,
            state.view.record.max_commit_us,
            how,
            plan.bounds.frontier,
            None if replica is None else replica.version,
            keys,
            behind,
            plan.commit_us,
            seconds,
            more=behind > 0,
            out_of_range={} if replica is None else replica.out_of_range,
        )

    def _failed(
        self, state: LogState, table: TableId, name: str, error: CdcError, started: float
    ) -> TableResult:
        try:
            replica = open_replica(self.path(state.source, table), check_by_hand=False)
        except CdcError:
            replica = None
        held = (replica.ends if replica is not None else None) or {}
        newest = state.view.ends.get(state.control.tables[table].topic, {})
        note = replica.note if replica is not None else None
        return TableResult(
            name,
            state.view.position,
            state.view.record.max_commit_us,
            "failed",
            None if replica is None else replica.position,
            None if replica is None else replica.version,
            behind_records=sum(max(0, end - held.get(p, 0)) for p, end in newest.items()),
            commit_us=None if note is None else note.commit_us,
            seconds=time.monotonic() - started,
            error=error,
            out_of_range={} if replica is None else replica.out_of_range,
        )

    def _current(
        self,
        session: SparkSession,
        state: LogState,
        table: TableId,
        name: str,
        replica: Replica,
        started: float,
    ) -> TableResult:
        """Nothing new; but a position about to leave the history window is recorded anew."""
        record = state.control.tables[table]
        frontier = state.frontier_of(record)
        assert frontier is not None  # noqa: S101 - run_pass asks for such tables only
        version = replica.version
        written = replica.note.log_ms if replica.note is not None else None
        due = time.time() - self.settings.history * _REFRESH_SHARE
        if written is not None and written / 1000 < due and replica.position != frontier:
            # As a batch that folds to nothing.
            reader = self.worker()[1]
            plan = plan_table(self.admin, reader, state, table, replica, even_if_valid=True)
            if plan is not None:
                commit = Commit(str(replica.app), plan.note("apply"))
                write_batch(session, replica, plan.layout, Batch(0, 0, 0), commit)
                version += 1
        return TableResult(
            name,
            state.view.position,
            state.view.record.max_commit_us,
            "current",
            max(frontier, replica.position or frontier),
            version,
            commit_us=state.view.record.max_commit_us,
            seconds=time.monotonic() - started,
            out_of_range=replica.out_of_range,
        )


def apply_once(
    spark: SparkSession,
    address: LogAddress,
    settings: ApplySettings,
    sources: Iterable[str],
) -> list[TableResult]:
    """Apply until every replica is at its source's newest frontier; for tests and tools.

    Raises:
        CdcError: The first error of a table, after the others were tried.
    """
    applier = Applier(spark, address, settings)
    names = list(sources)
    try:
        while True:
            results = applier.run_pass(names)
            for result in results:
                if result.error is not None:
                    raise result.error
            if not any(result.more for result in results):
                return results
    finally:
        applier.close()


def _first_app(state: LogState, table: TableId) -> str:
    record = state.control.tables[table]
    return str(AppId(state.source, record.topic_id or "", 1, 1, state.view.position.epoch))
