"""Runs a query: ``run_query(config, sql) -> QueryResult``.

The log is asked in the background while DuckDB loads and the replicas are opened, because
starting up is most of a small query's time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.errors import QueryError
from cdc.query.result import AsOf, QueryResult

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from cdc.config import Config
    from cdc.log.admin import LogAdmin
    from cdc.log.reader import LogReader
    from cdc.names import TableId
    from cdc.query.replica_reader import OpenReplica
    from cdc.query.source_view import LogState, TablePlan
    from cdc.query.statement import Statement, TableName
    from cdc.query.tail import Tail

#: Above this an answer takes seconds, and says how old it is.
LARGE_TAIL: Final = 200_000
#: Above this a tail does not fit into memory as Python objects.
LARGEST_TAIL: Final = 3_000_000
_WAIT_POLL_S: Final = 1.0


class _Clock:
    """Seconds per phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = self._start = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now
        self.seconds["total"] = now - self._start


class _Log:
    """A source's log: clients that connect in the background, and the first look at it."""

    def __init__(self, config: Config, source: str, pool: ThreadPoolExecutor) -> None:
        self.source = source
        self._config = config
        self.reader: LogReader | None = None
        self.admin: LogAdmin | None = None
        self._first: Future[LogState] = pool.submit(self._open)

    def _open(self) -> LogState:
        from cdc.log.admin import LogAdmin
        from cdc.log.reader import LogReader
        from cdc.log.settings import COMMAND_REFUSED_AFTER
        from cdc.query.source_view import read_log_state
        from cdc.runtime import resolve_log

        bootstrap, security = resolve_log(self._config)
        prefix = self._config.log.topic_prefix
        self.admin = LogAdmin(bootstrap, security)
        self.reader = LogReader(
            bootstrap, security, topic_prefix=prefix, refused_after=COMMAND_REFUSED_AFTER
        )
        policies = self._config.sources[self.source].policies_of
        return read_log_state(self.reader, self.admin, prefix, self.source, policies=policies)

    def state(self, replicas: Sequence[OpenReplica]) -> LogState:
        """The log at a frontier at or above all replicas, which were opened before."""
        from cdc.query.source_view import read_log_state

        state = self._first.result()
        reader, admin = self.clients
        # The first look warmed the clients up while modules were loading; much may have
        # been committed since.
        view = reader.frontier(self.source)
        if view is not None and view.offset == state.view.offset:
            if all(r.position <= view.position for r in replicas):
                return state
        prefix = self._config.log.topic_prefix
        policies = self._config.sources[self.source].policies_of
        return read_log_state(reader, admin, prefix, self.source, replicas, policies)

    @property
    def tables(self) -> Collection[TableId]:
        """The tables that the log has, or had: only it knows which ones match a pattern."""
        return self._first.result().control.tables.keys()

    @property
    def clients(self) -> tuple[LogReader, LogAdmin]:
        """Reader and admin, once ``state`` has returned."""
        if self.reader is None or self.admin is None:
            raise RuntimeError("the log is not open yet")
        return self.reader, self.admin

    def close(self) -> None:
        """Let go of the clients; waits for the background."""
        self._first.exception()
        if self.reader is not None:
            self.reader.close()


@dataclass(frozen=True, slots=True)
class _Source:
    """One source of a query, planned."""

    log: _Log
    state: LogState
    plans: list[TablePlan]
    last_good: bool

    @property
    def size(self) -> int:
        return sum(plan.size for plan in self.plans)


def run_query(
    config: Config,
    sql: str,
    *,
    last_good: bool = False,
    wait_s: float | None = None,
) -> QueryResult:
    """Answer one SELECT over tables named ``source.schema.table``.

    Args:
        config: The loaded cdc.yaml.
        sql: One SELECT in DuckDB's dialect.
        last_good: Answer for Errored tables as of their last good position.
        wait_s: When the replicas are far behind the log, wait for at most so many seconds
            until they are not; None: answer at once, however long it takes.

    Raises:
        QueryError: The statement is refused or fails, or a table is not Ready.
        LakeError, LogError, EnvironmentProblem: A replica or the log cannot be read.
    """
    from cdc.query.engine import lock, open_connection, run

    clock = _Clock()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(config.sources))))
        logs: dict[str, _Log] = {}
        stack.callback(_close_all, logs)
        for source in config.sources:
            if source in sql.lower():
                logs[source] = _Log(config, source, pool)
        connection = stack.enter_context(open_connection())
        clock.lap("start")
        statement = _checked(config, connection, sql, logs)
        clock.lap("parse")
        sources = _planned(config, statement, logs, pool, clock, last_good, wait_s)
        with _collector_paused():
            tails = _tails(sources)
            clock.lap("tail")
            files = _create(connection, sources, tails)
            del tails
        lock(connection, files)
        clock.lap("overlay")
        columns, types, rows = run(connection, statement.sql)
        clock.lap("query")
        as_of = {s.state.source: _as_of(s) for s in sources}
        size = sum(s.size for s in sources)
    return QueryResult(columns, types, rows, as_of, size, _notes(size, as_of), clock.seconds)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Python's cycle collector walks all records of a tail again and again; they hold none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _close_all(logs: dict[str, _Log]) -> None:
    for log in logs.values():
        log.close()


def _checked(
    config: Config, connection: DuckDBPyConnection, sql: str, logs: Mapping[str, _Log]
) -> Statement:
    from cdc.query.source_view import table_names
    from cdc.query.statement import check

    known = {
        name: source.with_matches(logs[name].tables if source.patterns and name in logs else ())
        for name, source in config.sources.items()
    }
    return check(connection, sql, table_names(known))


def _planned(
    config: Config,
    statement: Statement,
    logs: dict[str, _Log],
    pool: ThreadPoolExecutor,
    clock: _Clock,
    last_good: bool,
    wait_s: float | None,
) -> list[_Source]:
    """Plan every source, waiting for the replicas to come near if asked."""
    deadline = time.monotonic() + (wait_s or 0.0)
    names: dict[str, list[TableName]] = {}
    for name in statement.tables:
        names.setdefault(name.source, []).append(name)
    while True:
        sources = []
        for source, tables in names.items():
            if source not in logs:
                logs[source] = _Log(config, source, pool)
            sources.append(_plan_source(config, logs[source], tables, clock, last_good))
        size = sum(source.size for source in sources)
        if wait_s is None or size <= LARGE_TAIL:
            break
        if time.monotonic() > deadline:
            raise QueryError(
                "still_behind",
                f"after {wait_s:.0f} s the replicas are still {size} records behind",
                remedy="cdc status shows whether apply runs and how fast it is",
            )
        time.sleep(_WAIT_POLL_S)
        for source in names:
            logs.pop(source).close()
    if size > LARGEST_TAIL:
        raise QueryError(
            "too_far_behind",
            f"the replicas are {size} records behind the log, more than a query reads",
            remedy="let apply catch up: cdc start, then cdc query --wait",
        )
    return sources


def _plan_source(
    config: Config, log: _Log, tables: list[TableName], clock: _Clock, last_good: bool
) -> _Source:
    from cdc.log.topics import DELETE_RETENTION_MS
    from cdc.names import lake_folder
    from cdc.query.replica_reader import open_for_query
    from cdc.query.source_view import choose_frontier, plan_table

    # Before the frontier is looked at: a replica is never newer than what follows.
    replicas = {
        name: open_for_query(lake_folder(config.lake.path, name.source, *name.id), str(name))
        for name in tables
    }
    clock.lap("replicas")
    state = log.state([r for r in replicas.values() if r is not None])
    reader, admin = log.clients
    frontier = choose_frontier(state, tables, last_good=last_good)
    topics = [state.control.tables[name.id].topic for name in tables]
    ids = admin.topic_ids(topics)
    max_age_us = round(config.log.history.total_seconds() * 1e6) + DELETE_RETENTION_MS * 1000
    plans = [
        plan_table(
            state, reader, name, replicas[name], frontier, ids.get(topic, (None, 0))[0], max_age_us
        )
        for name, topic in zip(tables, topics, strict=True)
    ]
    clock.lap("frontier")
    return _Source(log, state, plans, frontier < state.view.position)


def _tails(sources: list[_Source]) -> dict[TableName, Tail]:
    from cdc.query.source_view import read_tails

    tails: dict[TableName, Tail] = {}
    for source in sources:
        tails.update(read_tails(source.log.clients[0], source.plans))
    return tails


def _create(
    connection: DuckDBPyConnection, sources: list[_Source], tails: dict[TableName, Tail]
) -> list[str]:
    """Create the views; returns the files that they read."""
    from cdc.query.overlay import TableOverlay

    files: list[str] = []
    plans = [plan for source in sources for plan in source.plans]
    for number, plan in enumerate(plans):
        overlay = TableOverlay(connection, number, plan.name, plan.schema, plan.replica)
        overlay.create(tails[plan.name])
        files += overlay.files
    return files


def _as_of(source: _Source) -> AsOf:
    state = source.state
    written_us = state.view.record.max_commit_us
    if state.written_ms is not None:
        written_us = max(written_us, state.written_ms * 1000)
    frontier = source.plans[0].frontier
    return AsOf(
        frontier,
        state.view.record.max_commit_us,
        max(0.0, time.time() - written_us / 1e6),
        source.last_good,
    )


def _notes(size: int, as_of: dict[str, AsOf]) -> tuple[str, ...]:
    notes = []
    if size > LARGE_TAIL:
        age = max(a.age_s for a in as_of.values())
        notes.append(
            f"the replicas are {size} records behind the log, so this answer is {age:.1f} s old; "
            "cdc query --wait waits until apply has caught up"
        )
    for source, at in as_of.items():
        if at.last_good:
            notes.append(f"source {source} is answered as of its last good position, not of now")
    return tuple(notes)
