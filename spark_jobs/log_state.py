"""What the log says now, and the range of a table that a batch has to read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from cdc.codecs import PoliciesOf, no_policies
from cdc.control import ControlState, TableRecord
from cdc.errors import LakeError, LogError
from cdc.frontier import FrontierRecord, FrontierView
from cdc.lake import AppId, CommitNote, Replica
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.names import TableId
from cdc.position import Position
from cdc.schema import TableSchema
from cdc.states import DONE, ERRORED, READY
from spark_jobs.layout import Layout
from spark_jobs.records import Bounds

log = structlog.get_logger(__name__)

#: A broker's clock may differ, and a transaction's records are older than its end.
_LONGEST_MARGIN: Final = 3600.0
_STABLE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class LogAddress:
    """Where the log is.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        security: librdkafka's options, secrets resolved.
        topic_prefix: ``log.topic_prefix``.
    """

    bootstrap: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    topic_prefix: str = ""

    def reader(self) -> LogReader:
        """A new reader, for one thread."""
        return LogReader(self.bootstrap, self.security, topic_prefix=self.topic_prefix)

    def admin(self) -> LogAdmin:
        """A new admin client."""
        return LogAdmin(self.bootstrap, self.security)


@dataclass(frozen=True, slots=True)
class LogState:
    """A source's frontier, and control up to it.

    Args:
        source: The source's name.
        view: The newest frontier.
        control: Control up to its ``control_end``.
        read_at: When the frontier was read, seconds since 1970.
        policies: What cdc.yaml says of columns' types, by table.
    """

    source: str
    view: FrontierView
    control: ControlState
    read_at: float
    policies: PoliciesOf = no_policies

    def frontier_of(self, record: TableRecord) -> Position | None:
        """How far a table may be read; None: not yet, or not at all."""
        frontier = self.view.position
        if record.state == ERRORED:
            if record.last_good is None:
                return None
            frontier = min(frontier, record.last_good)
        elif record.state != READY:
            return None
        if record.ready_from is None or frontier < record.ready_from:
            return None
        return frontier

    def older_load_of(self, table: TableId, app: AppId) -> int | None:
        """The load that a replica was folded from, if a newer one was switched in since."""
        current = self.control.tables[table].load
        if app.source != self.source:
            return None
        for number in range(1, current):
            load = self.control.loads.get((table, number))
            if load is not None and load.state == DONE and load.topic_id == app.topic_id:
                return number
        return None


def read_log_state(
    reader: LogReader, source: str, policies: PoliciesOf = no_policies
) -> LogState | None:
    """The log as it is now; None when the source has no frontier yet."""
    read_at = time.time()
    try:
        view = reader.frontier(source)
    except LogError as error:
        if error.code == "topic_missing":
            return None
        raise
    if view is None:
        return None
    control = reader.control_state(source, view.record.control_end)
    return LogState(source, view, control, read_at, policies)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A range of a table's log, checked.

    Args:
        source: The source's name.
        layout: The replica's columns as of the frontier.
        record: The table's state in control.
        versions: Schema versions of the load.
        bounds: Positions [P, F) and truncate.
        offsets: Partition to offsets [start, end) that hold the range.
        ends: Partition to next offset as of F.
        commit_us: Highest commit time below F, µs since 1970 UTC.
        stands_since: No record at or above F was written before this moment, seconds since
            1970; None: not known.
        whole_since: The log is known to hold every record of the range if nothing older than
            this moment was compacted; seconds since 1970; None: not known.
        compaction_lag: The topic's ``min.compaction.lag.ms``, seconds; None: never compacted.
        out_of_range: Column to number of values that its Delta type cannot hold, of all batches
            since the replica was built.
        loses_columns: Columns leave the table in the range: every row of the replica changes.
    """

    source: str
    layout: Layout
    record: TableRecord
    versions: Mapping[int, TableSchema]
    bounds: Bounds
    offsets: Mapping[int, tuple[int, int]]
    ends: Mapping[int, int]
    commit_us: int
    stands_since: float | None
    whole_since: float | None
    compaction_lag: float | None
    out_of_range: Mapping[str, int] = field(default_factory=dict)
    loses_columns: bool = False

    @property
    def offset_count(self) -> int:
        """Number of offsets: at least the number of records."""
        return sum(end - start for start, end in self.offsets.values())

    def note(self, kind: str, out_of_range: Mapping[str, int] | None = None) -> CommitNote:
        """The userMetadata of a commit that brings a replica to the plan's frontier.

        Args:
            kind: As of ``CommitNote``.
            out_of_range: Of the commit's batch.
        """
        total = Counter(self.out_of_range)
        total.update(out_of_range or {})
        since = self.stands_since
        log_ms = None if since is None else int(since * 1000)
        return CommitNote(
            self.bounds.frontier, self.commit_us, dict(self.ends), kind, log_ms, dict(total)
        )

    def check_window(self, now: float | None = None) -> None:
        """To be called when all is read: refuse what compaction may have taken from meanwhile.

        Raises:
            LakeError: ``history_compacted``, ``read_too_slow``.
        """
        if self.compaction_lag is None:
            return
        margin = min(_LONGEST_MARGIN, self.compaction_lag / 4)
        oldest = (time.time() if now is None else now) - (self.compaction_lag - margin)
        if self.whole_since is not None and self.whole_since > oldest:
            return
        if self.bounds.start is None:
            raise LakeError(
                "read_too_slow",
                "reading the log took longer than it is kept whole "
                f"(min.compaction.lag.ms of {self.record.topic})",
                table=self.layout.table,
                remedy="raise log.history and the topic's min.compaction.lag.ms",
            )
        raise LakeError(
            "history_compacted",
            "the replica is older than the log's history window: compaction may have removed "
            "changes that it lacks",
            table=self.layout.table,
            position=str(self.bounds.start),
            remedy=f"cdc rebuild {self.layout.table} --from-offset 0",
        )


def plan_table(
    admin: LogAdmin,
    reader: LogReader,
    state: LogState,
    table: TableId,
    replica: Replica | None,
    *,
    max_records: int | None = None,
    even_if_valid: bool = False,
) -> TablePlan | None:
    """The range that brings a replica up to date, after all checks of its topic.

    Args:
        admin: Of the log.
        reader: Of the log.
        state: Of the source.
        table: The table.
        replica: At the version that is planned from; None: fold from the beginning.
        max_records: Stop at an earlier frontier, where a range has more offsets.
        even_if_valid: Plan the empty range of a replica that is valid as it is, too.

    Returns:
        The plan; None when the replica is valid at the newest frontier as it is.

    Raises:
        LakeError: ``other_topic``, ``other_epoch``: the replica is not of this load.
        LogError: ``topic_recreated``, ``truncated_topic``, ``log_start_moved``,
            ``open_transaction``.
    """
    record = state.control.tables[table]
    frontier = state.frontier_of(record)
    name = f"{state.source}.{table}"
    if frontier is None:
        return None
    if replica is not None:
        _check_app(replica, state, record, frontier, name)
    start = None if replica is None else replica.position
    if start is not None and start >= frontier:
        return None
    ends = dict(state.view.ends.get(record.topic, {}))
    truncate = state.control.newest_truncate(table, record.load, frontier)
    bounds = Bounds(start, frontier, truncate)
    held = replica.ends if replica is not None else None

    def schema_at(position: Position) -> TableSchema | None:
        return state.control.schema_at(table, record.load, position)

    before = None if start is None else schema_at(start)
    if held == ends and not bounds.truncated and not even_if_valid:
        if not _has_other_form(before, schema_at(frontier)):
            return None
    if start is not None and held is None:
        held = (reader.ends_at(state.source, start) or {}).get(record.topic)
    commit_us = state.view.record.max_commit_us
    if start is not None and held is not None and max_records is not None:
        shorter = _shortened(reader, state, record, bounds, held, ends, max_records)
        if shorter is not None:
            bounds, ends, commit_us = shorter
    schema = schema_at(bounds.frontier)
    if schema is None:
        raise LogError("schema_unknown", "control holds no schema of the table", table=name)
    policies = state.policies(table)
    if unknown := policies.unknown_columns(schema):
        log.warning("types_of_unknown_columns", table=name, columns=unknown)
    if not_arrays := policies.not_arrays(schema):
        log.warning("types_of_no_arrays", table=name, columns=not_arrays)
    offsets, lag = _checked_offsets(admin, record, held or {}, ends, name)
    since = None
    if replica is not None and replica.note is not None and replica.note.log_ms is not None:
        since = replica.note.log_ms / 1000
    is_newest = bounds.frontier == state.view.position
    return TablePlan(
        state.source,
        Layout(policies.put_into(schema), name),
        record,
        {
            version: policies.put_into(known)
            for version, known in state.control.schemas[table, record.load].items()
        },
        bounds,
        offsets,
        ends,
        commit_us,
        state.read_at if is_newest else since,
        state.read_at if start is None else since,
        lag,
        {} if replica is None else replica.out_of_range,
        _loses_columns(before, schema),
    )


def _loses_columns(then: TableSchema | None, now: TableSchema | None) -> bool:
    """Whether columns leave a table between two frontiers, as far as a replica is concerned."""
    return then is not None and now is not None and then.dropped != now.dropped


def _has_other_form(then: TableSchema | None, now: TableSchema | None) -> bool:
    """Whether columns leave or join it."""
    return then is not None and now is not None and then.version != now.version


def _check_app(
    replica: Replica, state: LogState, record: TableRecord, frontier: Position, name: str
) -> None:
    app = replica.app
    remedy = f"cdc rebuild {name} --from-offset 0"
    if app.source != state.source or app.topic_id != record.topic_id:
        raise LakeError(
            "other_topic",
            f"the replica was folded from another topic than {record.topic}",
            table=name,
            remedy=remedy,
        )
    if app.epoch != frontier.epoch:
        raise LakeError(
            "other_epoch",
            f"the replica is of epoch {app.epoch} of the source's history, the log is of "
            f"{frontier.epoch}",
            table=name,
            remedy=remedy,
        )


def _shortened(
    reader: LogReader,
    state: LogState,
    record: TableRecord,
    bounds: Bounds,
    held: Mapping[int, int],
    ends: dict[int, int],
    max_records: int,
) -> tuple[Bounds, dict[int, int], int] | None:
    """An earlier frontier, with its ends and commit time, where the backlog is a large one."""

    def offsets(upto: Mapping[int, int]) -> int:
        return sum(end - held.get(p, 0) for p, end in upto.items())

    if offsets(ends) <= max_records:
        return None
    upto = {p: held.get(p, 0) for p in ends}
    best: tuple[FrontierRecord, dict[int, int]] | None = None
    for _, found in reader.frontier_history(state.source, bounds.start):
        if found.position > bounds.frontier:
            break
        upto.update(found.ends.get(record.topic, {}))
        if best is not None and offsets(upto) > max_records:
            break
        best = found, dict(upto)
    if best is None:
        return None
    position = best[0].position
    truncate = state.control.newest_truncate(record.id, record.load, position)
    return Bounds(bounds.start, position, truncate), best[1], best[0].max_commit_us


def _checked_offsets(
    admin: LogAdmin,
    record: TableRecord,
    held: Mapping[int, int],
    ends: Mapping[int, int],
    name: str,
) -> tuple[dict[int, tuple[int, int]], float | None]:
    """Offsets to read, and the topic's compaction lag in seconds (None: never compacted)."""
    info = admin.describe(record.topic)
    if info.topic_id != record.topic_id or info.partitions != record.partitions:
        raise LogError(
            "topic_recreated",
            f"topic {record.topic} is not the one that capture wrote (another topic id or "
            "number of partitions)",
            table=name,
            remedy="start a new load of the table",
        )
    deadline = time.monotonic() + _STABLE_SECONDS
    while True:
        found = admin.offsets_of({record.topic: record.partitions})[record.topic]
        for p, end in ends.items():
            if end > found[p].end:
                raise LogError(
                    "truncated_topic",
                    f"topic {record.topic}[{p}] ends at {found[p].end}, but the log has been "
                    f"written up to {end}",
                    table=name,
                    remedy="the topic was truncated: it needs a new load",
                )
        waiting = [p for p, end in ends.items() if end > found[p].last_stable]
        if not waiting:
            break
        if time.monotonic() > deadline:
            raise LogError(
                "open_transaction",
                f"topic {record.topic}{waiting} has a transaction that does not end",
                table=name,
                remedy="start the capture that wrote it; it ends what it left open",
            )
        time.sleep(0.05)
    offsets = {}
    for p in range(record.partitions):
        start, end = held.get(p, 0), ends.get(p, 0)
        if found[p].start > start and end > start:
            raise LogError(
                "log_start_moved",
                f"topic {record.topic}[{p}] starts at {found[p].start}, records from {start} on "
                "are gone",
                table=name,
                remedy="the topic's retention removed history: start a new load of the table",
            )
        offsets[p] = (start, max(start, end))
    lag = None
    if info.cleanup_policy != "delete":
        lag = int(info.configs["min.compaction.lag.ms"]) / 1000
    return offsets, lag
