"""Runs a verify: ``run_verify(config, tables, open_source, options) -> VerifyResult``.

Source by source: the replicas are opened first, so that none is newer than the snapshot that is
taken then; the log has to pass the snapshot's position; then each table is read on both sides as
of exactly that position, source and derived table at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from cdc.config import Config
from cdc.errors import CdcError, ConfigError, EnvironmentProblem, LogError, QueryError
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.log.topics import DELETE_RETENTION_MS
from cdc.names import TableId, lake_folder
from cdc.position import Position, format_lsn, frontier
from cdc.query.engine import open_connection
from cdc.query.replica_reader import OpenReplica, open_for_query
from cdc.query.run import LARGEST_TAIL
from cdc.query.source_view import (
    LogState,
    TablePlan,
    choose_frontier,
    plan_table,
    read_log_state,
    read_tails,
    table_names,
)
from cdc.query.statement import TableName
from cdc.query.tail import Tail
from cdc.runtime import resolve_log
from cdc.states import REMOVED
from cdc.verify.compare import differing_ranges, find_differences
from cdc.verify.derived import DerivedTable
from cdc.verify.replica import pin_replica
from cdc.verify.result import DIFFERENT, EQUAL, LEFT_OUT, REFUSED, TableResult, VerifyResult
from cdc.verify.sides import OpenSource, SourceSnapshot, row_count

#: What keeps a table out of a verify of all tables without making it fail.
_NOT_READY: Final = frozenset(
    ("not_started", "table_not_ready", "table_errored", "table_not_captured")
)
#: After these the snapshot is gone for all tables.
_SNAPSHOT_LOST: Final = frozenset(("connection_lost", "server_stopping"))
_POLL_S: Final = 0.1
#: Within this time a server tells its position by itself, mostly.
_NUDGE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify.

    Args:
        limit: List so many keys of a table at most.
        values: Tell the values of the columns that differ.
        replica: Compare the replica alone, as other engines read it.
        wait_s: How long to wait for the log, and for the replica, seconds.
    """

    limit: int = 100
    values: bool = False
    replica: bool = False
    wait_s: float = 60.0


def run_verify(
    config: Config,
    tables: Sequence[str],
    open_source: OpenSource,
    options: VerifyOptions,
    on_result: Callable[[TableResult], None] = lambda result: None,
) -> VerifyResult:
    """Compare derived tables with their sources.

    Args:
        config: The loaded cdc.yaml.
        tables: ``source.schema.table`` …; empty: all that are Ready.
        open_source: Takes the snapshot of a source.
        options: How.
        on_result: Told each table's outcome as it comes.

    Returns:
        An outcome for each table that was asked for, errors included.

    Raises:
        ConfigError: ``unknown_table``.
        EnvironmentProblem: The log cannot be reached.
    """
    results = []
    bootstrap, security = resolve_log(config)
    with LogReader(bootstrap, security, topic_prefix=config.log.topic_prefix) as reader:
        admin = LogAdmin(bootstrap, security)
        for source, names in _wanted(_known(config, reader), tables).items():
            run = _SourceRun(config, source, reader, admin, options, named=bool(tables))
            for result in run.results(names, open_source):
                on_result(result)
                results.append(result)
    return VerifyResult(tuple(results))


def _known(config: Config, reader: LogReader) -> list[TableName]:
    """The tables of cdc.yaml; which ones match a pattern, only the log knows."""
    known = {}
    for name, source in config.sources.items():
        known[name] = source.with_matches(_in_log(reader, name) if source.patterns else ())
    return table_names(known)


def _in_log(reader: LogReader, source: str) -> list[TableId]:
    try:
        tables = reader.control_state(source).tables
    except LogError as error:
        if error.code != "topic_missing":
            raise
        return []
    return [id for id, record in tables.items() if record.state != REMOVED]


def _wanted(known: Sequence[TableName], tables: Sequence[str]) -> dict[str, list[TableName]]:
    """Source to its tables among those asked for; all of them if none is named."""
    by_text = {str(name): name for name in known}
    wanted: dict[str, list[TableName]] = {}
    for table in dict.fromkeys(tables) or by_text:
        if table not in by_text:
            raise ConfigError(
                "unknown_table",
                f"cdc.yaml names no table {table}",
                table=table,
                remedy="one of " + ", ".join(sorted(by_text)),
            )
        wanted.setdefault(by_text[table].source, []).append(by_text[table])
    return wanted


class _SourceRun:
    """The tables of one source.

    Args:
        config: The loaded cdc.yaml.
        source: Its name.
        reader: Of the log.
        admin: Of the log.
        options: How to verify.
        named: Whether somebody named these tables.
    """

    def __init__(
        self,
        config: Config,
        source: str,
        reader: LogReader,
        admin: LogAdmin,
        options: VerifyOptions,
        *,
        named: bool,
    ) -> None:
        self._config = config
        self._source = source
        self._reader = reader
        self._admin = admin
        self._options = options
        self._named = named

    def results(self, names: Sequence[TableName], open_source: OpenSource) -> Iterator[TableResult]:
        """The tables' outcomes; what befalls the source as a whole befalls each that is left."""
        left = [str(name) for name in names]
        try:
            for result in self._compared(names, open_source):
                left.remove(result.table)
                yield result
        except CdcError as error:
            for table in left:
                yield self._refused(table, error)

    def _compared(
        self, names: Sequence[TableName], open_source: OpenSource
    ) -> Iterator[TableResult]:
        state = self._state()
        ready: dict[TableName, OpenReplica | None] = {}
        for name in names:
            try:
                choose_frontier(state, [name], last_good=False)
                # Before the snapshot is taken: no replica is newer than what follows.
                ready[name] = self._replica(name)
            except CdcError as error:
                yield self._refused(str(name), error)
        if not ready:
            return
        with open_source(self._source) as snapshot:
            position = self._pass(snapshot)
            for name, replica in ready.items():
                try:
                    result = self._table(snapshot, name, replica, position)
                except CdcError as error:
                    if error.code in _SNAPSHOT_LOST:
                        raise
                    result = self._refused(str(name), error)
                yield result

    def _pass(self, snapshot: SourceSnapshot) -> Position:
        """Wait until the log has passed the snapshot; its position."""
        began = time.monotonic()
        nudge_at = began + _NUDGE_S
        while True:
            view = self._reader.frontier(self._source)
            if view is None:
                raise LogError("bad_record", f"the log of source {self._source} has no frontier")
            if view.record.sysid != snapshot.sysid:
                raise EnvironmentProblem(
                    "another_server",
                    f"source {self._source} is another database system than its log is of",
                    remedy="check host and port in cdc.yaml",
                )
            position = frontier(view.position.epoch, snapshot.consistent_point)
            if view.position >= position:
                return position
            now = time.monotonic()
            if now - began > self._options.wait_s:
                raise EnvironmentProblem(
                    "log_behind",
                    f"after {now - began:.0f} s the log stands at "
                    f"{format_lsn(view.position.lsn)}, before the source's position "
                    f"{format_lsn(position.lsn)}",
                    position=str(position),
                    remedy="does capture run, and how far behind is it? cdc status; then "
                    "cdc start, or more seconds for --wait",
                )
            if now >= nudge_at:
                snapshot.nudge()
                nudge_at = now + _NUDGE_S
            time.sleep(_POLL_S)

    # --- one table ---

    def _table(
        self,
        snapshot: SourceSnapshot,
        name: TableName,
        replica: OpenReplica | None,
        position: Position,
    ) -> TableResult:
        began = time.monotonic()
        # Anew for each: the tables before may have taken their time.
        state = self._state()
        choose_frontier(state, [name], last_good=False)
        ready_from = state.control.tables[name.id].ready_from
        if ready_from is None or position < ready_from:
            raise QueryError(
                "table_not_ready",
                f"a newer load of the table is complete from {ready_from} on only",
                table=str(name),
                position=str(position),
                remedy="verify again",
            )
        if not self._options.replica:
            plan = self._plan(state, name, replica, position)
            return self._compare(snapshot, plan, None, began)
        plan, tail = pin_replica(
            str(name),
            lambda: self._replica(name),
            lambda found, upto: self._plan(
                self._state([replace(found, position=upto)]), name, found, upto
            ),
            self._reader,
            position,
            self._options.wait_s,
        )
        return self._compare(snapshot, plan, tail, began)

    def _compare(
        self, snapshot: SourceSnapshot, plan: TablePlan, tail: Tail | None, began: float
    ) -> TableResult:
        options = self._options
        with (
            snapshot.table(plan.schema) as source,
            ThreadPoolExecutor(1) as pool,
            open_connection() as connection,
        ):
            asked = pool.submit(source.sums)
            try:
                if tail is None:
                    tail = read_tails(self._reader, [plan])[plan.name]
                derived = DerivedTable(connection, plan, tail)
                ours = derived.sums()
                theirs = asked.result()
            except BaseException:
                source.cancel()
                raise
            ranges = differing_ranges(theirs, ours)
            found = find_differences(
                plan.schema,
                source,
                derived,
                ranges,
                limit=options.limit,
                with_values=options.values,
            )
            return TableResult(
                table=str(plan.name),
                outcome=DIFFERENT if ranges else EQUAL,
                position=plan.frontier,
                replica=plan.start,
                tail_keys=len(tail.keys),
                source_rows=row_count(theirs),
                derived_rows=row_count(ours),
                ranges=len(theirs.keys() | ours.keys()),
                differing_ranges=len(ranges),
                differences=found.differences,
                complete=found.complete,
                notes=source.notes,
                seconds=time.monotonic() - began,
            )

    def _plan(
        self, state: LogState, name: TableName, replica: OpenReplica | None, upto: Position
    ) -> TablePlan:
        topic = state.control.tables[name.id].topic
        topic_id, _ = self._admin.topic_ids([topic]).get(topic, (None, 0))
        history_us = round(self._config.log.history.total_seconds() * 1e6)
        max_age_us = history_us + DELETE_RETENTION_MS * 1000
        plan = plan_table(state, self._reader, name, replica, upto, topic_id, max_age_us)
        if plan.size > LARGEST_TAIL:
            raise QueryError(
                "too_far_behind",
                f"the replica is {plan.size} records behind the log, more than can be read",
                table=str(name),
                remedy="let apply catch up: cdc start, then verify again",
            )
        return plan

    def _state(self, replicas: Sequence[OpenReplica] = ()) -> LogState:
        prefix = self._config.log.topic_prefix
        policies = self._config.sources[self._source].policies_of
        return read_log_state(self._reader, self._admin, prefix, self._source, replicas, policies)

    def _replica(self, name: TableName) -> OpenReplica | None:
        folder = lake_folder(self._config.lake.path, name.source, *name.id)
        return open_for_query(folder, str(name))

    def _refused(self, table: str, error: CdcError) -> TableResult:
        out = not self._named and error.code in _NOT_READY
        return TableResult(table, LEFT_OUT if out else REFUSED, error)
