"""One source as of one frontier: what control says, how far replicas are, and the tails.

The order that makes this exact: a replica is opened at one version with its position P, the
frontier F must be at or above every P, control is read up to what F names, and tails are cut
by position to [P, F). So all tables of a source stand at F, whatever is written meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.codecs import PoliciesOf, no_policies
from cdc.control import ControlState, TableRecord
from cdc.envelope import LogRecord, parse_record
from cdc.errors import LakeError, LogError, QueryError, and_then
from cdc.frontier import Ends, FrontierView
from cdc.load_progress import load_words, loads_under_way
from cdc.log.reader import LogReader
from cdc.names import TableId, frontier_topic
from cdc.position import Position, format_lsn
from cdc.query.replica_reader import OpenReplica
from cdc.query.statement import TableName
from cdc.query.tail import Tail, count_tail, fold_tail
from cdc.schema import TableSchema
from cdc.states import ERRORED, READY, REMOVED
from cdc.tally import Tally

if TYPE_CHECKING:
    from cdc.log.admin import LogAdmin
    from cdc.log.ranges import Range

# A replica is committed after the frontier that it stands for, so reading again must do.
_FRONTIER_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class LogState:
    """A source's log at one frontier.

    Args:
        source: The source's name.
        view: The newest frontier.
        control: Control up to what the frontier names.
        written_ms: When the frontier was written, broker's clock, ms since 1970 UTC.
        policies: What cdc.yaml says of columns' types, by table.
    """

    source: str
    view: FrontierView
    control: ControlState
    written_ms: int | None
    policies: PoliciesOf = no_policies


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What to read of one table.

    Args:
        name: The table.
        record: Its state in control.
        schema: Valid at F.
        versions: All schema versions of the load.
        replica: At P; None when everything comes from the log.
        frontier: F.
        truncate: The newest truncate below F.
        ranges: Of the topic, holding all records in [P, F).
    """

    name: TableName
    record: TableRecord
    schema: TableSchema
    versions: Mapping[int, TableSchema]
    replica: OpenReplica | None
    frontier: Position
    truncate: Position | None
    ranges: tuple[Range, ...]

    @property
    def start(self) -> Position | None:
        """P, or None without a replica."""
        return None if self.replica is None else self.replica.position

    @property
    def size(self) -> int:
        """Offsets to read; the records are fewer (transaction markers, compaction)."""
        return sum(r.end - r.start for r in self.ranges)


def read_log_state(
    reader: LogReader,
    admin: LogAdmin,
    prefix: str,
    source: str,
    replicas: Collection[OpenReplica] = (),
    policies: PoliciesOf = no_policies,
) -> LogState:
    """Read frontier and control of a source.

    Args:
        reader: Of the log.
        admin: Of the log.
        prefix: ``log.topic_prefix``.
        source: The source's name.
        replicas: Opened before; the frontier is at or above all their positions.
        policies: What cdc.yaml says of columns' types, by table.

    Raises:
        QueryError: ``not_started``, ``table_not_ready`` (nothing is complete yet).
        LakeError: ``replica_ahead``.
        LogError, EnvironmentProblem: As the reader.
    """
    for attempt in range(_FRONTIER_TRIES):
        try:
            view, control = reader.newest(source)
        except LogError as error:
            if error.code != "topic_missing":
                raise
            raise QueryError(
                "not_started",
                f"source {source} has no log yet: it was never captured",
                remedy="cdc start",
            ) from None
        if view is None:
            raise _not_ready(source, control)
        position = view.position
        ahead = [r for r in replicas if r.position > position]
        if not ahead:
            written = admin.written_ms(frontier_topic(prefix, source))
            return LogState(source, view, control, written, policies)
        time.sleep(0.05 * attempt)
    raise LakeError(
        "replica_ahead",
        f"a replica of source {source} is ahead of the log, which ends at {position}",
        position=str(max(r.position for r in ahead)),
        remedy="log and lake do not belong together: check log.bootstrap_servers and lake.path",
    )


def _not_ready(source: str, control: ControlState) -> QueryError:
    tables = [r for r in control.tables.values() if r.state != READY]
    return QueryError(
        "table_not_ready",
        f"the first load of source {source} is under way ({len(tables)} tables)",
        remedy="cdc status shows how far it is; without a daemon, cdc start",
    )


def choose_frontier(state: LogState, tables: Sequence[TableName], *, last_good: bool) -> Position:
    """F: the newest frontier, or with ``last_good`` where the first Errored table stands.

    Raises:
        QueryError: ``table_not_ready``, ``table_errored``, ``table_not_captured``,
            ``table_removed``.
    """
    frontier = state.view.position
    for name in tables:
        record = state.control.tables.get(name.id)
        if record is None:
            raise QueryError(
                "table_not_captured",
                "the table is in cdc.yaml, but was never captured",
                table=str(name),
                remedy="restart cdc start, which reads cdc.yaml",
            )
        if record.state == REMOVED:
            raise QueryError(
                "table_removed",
                "the table is not captured any more",
                table=str(name),
                remedy="cdc reload captures it again, if cdc.yaml names it and the source has it",
            )
        if record.state == ERRORED:
            frontier = min(frontier, _last_good(name, record, asked=last_good))
        elif record.state != READY:
            raise _loading(name, record, state.control)
    for name in tables:
        ready_from = state.control.tables[name.id].ready_from
        if ready_from is None or frontier < ready_from:
            raise QueryError(
                "table_not_ready",
                f"the table's load is complete only from {ready_from} on, and {frontier} is asked",
                table=str(name),
                remedy="wait for the load; cdc status shows how far it is",
            )
    return frontier


def _last_good(name: TableName, record: TableRecord, *, asked: bool) -> Position:
    if record.last_good is None:
        raise QueryError(
            "table_errored",
            f"the table is {record.state} and has no good position: {record.reason}",
            table=str(name),
            remedy=record.remedy,
        )
    if not asked:
        asking = "or ask for the last good state: cdc query --last-good"
        remedy = and_then(record.remedy, asking) if record.remedy else asking
        raise QueryError(
            "table_errored",
            f"the table is {record.state} since {format_lsn(record.last_good.lsn)}: "
            f"{record.reason}",
            table=str(name),
            position=str(record.last_good),
            remedy=remedy,
        )
    return record.last_good


def _loading(name: TableName, record: TableRecord, control: ControlState) -> QueryError:
    load = loads_under_way(control).get(name.id)
    how_far = "" if load is None else f", load {load.load}: {load_words(load)}"
    return QueryError(
        "table_not_ready",
        f"the table is {record.state}{how_far}",
        table=str(name),
        remedy="wait for the load; cdc status shows how far it is; without a daemon, cdc start",
    )


def plan_table(
    state: LogState,
    reader: LogReader,
    name: TableName,
    replica: OpenReplica | None,
    frontier: Position,
    topic_id: str | None,
    max_age_us: int,
) -> TablePlan:
    """Plan the reading of one table.

    Args:
        state: The source's log.
        reader: Of the log.
        name: The table.
        replica: As opened, or None.
        frontier: F.
        topic_id: What the broker says of the table's topic now; None: it is not there.
        max_age_us: Deletes older than this may be gone from the log.

    Raises:
        LogError: ``topic_recreated``, ``schema_unknown``, or as the reader.
        QueryError: ``replica_too_old``, ``replica_newer`` (with ``--last-good``).
    """
    record = state.control.tables[name.id]
    if topic_id != record.topic_id:
        raise LogError(
            "topic_recreated",
            f"topic {record.topic} is not the one that was written (its id differs)",
            table=str(name),
            remedy="it was deleted or created again: the table needs a new load",
        )
    schema = state.control.schema_at(name.id, record.load, frontier)
    if schema is None:
        raise LogError("schema_unknown", "control has no schema of the table", table=str(name))
    policies = state.policies(name.id)
    used = _usable(state, record, replica)
    if used is not None and used.position > frontier:
        raise QueryError(
            "replica_newer",
            f"the replica already stands at {format_lsn(used.position.lsn)}, after the last "
            "good position of another table",
            table=str(name),
            remedy="query the tables one by one",
        )
    starts = _starts(state, reader, record, used)
    plan = TablePlan(
        name=name,
        record=record,
        schema=policies.put_into(schema),
        versions={
            version: policies.put_into(known)
            for version, known in state.control.schemas.get((name.id, record.load), {}).items()
        },
        replica=used,
        frontier=frontier,
        truncate=state.control.newest_truncate(name.id, record.load, frontier),
        ranges=_ranges(state.view, reader, record, starts),
    )
    if used is not None and plan.size:
        _check_age(plan, reader, starts, max_age_us)
    return plan


def _usable(
    state: LogState, record: TableRecord, replica: OpenReplica | None
) -> OpenReplica | None:
    """The replica if it was built from this load's topic, else everything comes from the log."""
    source = state.control.source
    if replica is None or replica.app.topic_id != record.topic_id:
        return None
    if source is not None and replica.app.epoch != source.epoch:
        return None
    return replica


def _starts(
    state: LogState, reader: LogReader, record: TableRecord, replica: OpenReplica | None
) -> Mapping[int, int]:
    """Per partition an offset that no record at or above P lies below."""
    if replica is None:
        return {}
    if replica.ends is not None:
        return replica.ends
    ends: Ends | None = reader.ends_at(state.source, replica.position)
    return {} if ends is None else ends.get(record.topic, {})


def _ranges(
    view: FrontierView, reader: LogReader, record: TableRecord, starts: Mapping[int, int]
) -> tuple[Range, ...]:
    from cdc.log.ranges import Range

    ends = view.ends.get(record.topic, {})
    ranges = []
    for partition in range(record.partitions):
        end = ends.get(partition)
        if end is None:
            # Nothing was told of it; what it holds above F is cut off by position.
            end = reader.bounds(record.topic, partition).last_stable
        start = starts.get(partition, 0)
        ranges.append(Range(record.topic, partition, min(start, end), end))
    return tuple(ranges)


def _check_age(
    plan: TablePlan, reader: LogReader, starts: Mapping[int, int], max_age_us: int
) -> None:
    """Refuse a replica so old that the log may have forgotten deletes since its position."""
    replica = plan.replica
    if replica is None or replica.written_us is None:
        return
    if time.time_ns() // 1000 - replica.written_us <= max_age_us:
        return
    for _, record in reader.frontier_history(plan.name.source):
        if record.full:
            # Nothing was written to the topic from P until this, which is recent enough.
            ends = record.ends.get(plan.record.topic, {})
            partitions = range(plan.record.partitions)
            if all(ends.get(p, 0) == starts.get(p, 0) for p in partitions):
                return
            break
    raise QueryError(
        "replica_too_old",
        "the replica is so old that the log no longer holds every delete since then",
        table=str(plan.name),
        position=str(replica.position),
        remedy=f"cdc rebuild {plan.name} --from-offset 0",
    )


def read_tails(reader: LogReader, plans: Sequence[TablePlan]) -> dict[TableName, Tail]:
    """Read and fold the tails of a source's tables, all partitions at the same time.

    Raises:
        LogError: As the reader, ``bad_record``, ``value_lost``, ``schema_unknown``.
        LakeError: ``value_out_of_range``.
    """
    by_topic = {plan.record.topic: plan for plan in plans}
    records: dict[str, list[LogRecord]] = {topic: [] for topic in by_topic}
    tallies = {
        topic: Tally(str(plan.name), topic, plan.frontier, plan.truncate, plan.start)
        for topic, plan in by_topic.items()
        if plan.schema.counted
    }
    for topic, partition, batch in reader.ranges(r for plan in plans for r in plan.ranges):
        if topic in tallies:
            tallies[topic].add(partition, batch)
            continue
        records[topic] += [
            parse_record(topic, partition, offset, key, value, headers)
            for offset, key, value, headers in batch
        ]
    tails = {}
    for topic, plan in by_topic.items():
        if topic in tallies:
            tails[plan.name] = count_tail(tallies[topic], plan.start, plan.truncate)
            continue
        try:
            tails[plan.name] = fold_tail(
                records.pop(topic),
                plan.schema,
                plan.frontier,
                plan.start,
                plan.truncate,
                plan.versions,
            )
        except (LogError, LakeError) as error:
            error.table = error.table or str(plan.name)
            raise
    return tails


def table_names(sources: Mapping[str, Collection[TableId]]) -> list[TableName]:
    """All tables of cdc.yaml as queries name them."""
    return [TableName(source, table) for source, tables in sources.items() for table in tables]
