"""What the log says of a source when capture starts: control, frontier, ends, fenced writers."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from cdc.control import ControlState, OffsetRecord, TableRecord
from cdc.errors import LogError
from cdc.frontier import FrontierView
from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.reader import LogReader
from cdc.names import MAX_SNAPSHOT_WORKERS, TableId, snapshot_transactional_id
from cdc.position import Position
from cdc.states import READY, REMOVED
from connectors.postgres.aside import is_aside
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.log_writer import LogPosition
from connectors.postgres.routes import RoutedTable
from connectors.postgres.startcheck import frontier_lost

_FENCE_AT_ONCE = 6


def fence(settings: CaptureSettings) -> None:
    """End every writer of this source that may still live, and its open transactions.

    Raises:
        EnvironmentProblem: ``kafka_unreachable``, ``kafka_denied``.
        LogError: Anything else that the broker says.
    """
    workers = (
        snapshot_transactional_id(settings.project, settings.source, n)
        for n in range(1, MAX_SNAPSHOT_WORKERS + 1)
    )

    def one(transactional_id: str) -> None:
        with TransactionalProducer(
            settings.bootstrap_servers, transactional_id, settings.log_options
        ) as producer:
            producer.init()

    # Capture's first: nothing may be written while the rest is fenced.
    one(settings.transactional_id)
    with ThreadPoolExecutor(_FENCE_AT_ONCE) as pool:
        list(pool.map(one, workers))


def read_control(settings: CaptureSettings) -> ControlState:
    """The source's control topic, folded; empty when the source was never started."""
    with _reader(settings) as reader:
        try:
            return reader.control_state(settings.source)
        except LogError as error:
            if error.code != "topic_missing":
                raise
            return ControlState()


def is_begun(control: ControlState) -> bool:
    """Whether the first start came as far as a frontier."""
    return control.offset is not None


def captured_tables(control: ControlState) -> dict[TableId, TableRecord]:
    """The tables whose events go somewhere, or will."""
    return {id: record for id, record in control.tables.items() if record.state != REMOVED}


def read_position(settings: CaptureSettings, control: ControlState, admin: LogAdmin) -> LogPosition:
    """Where the log stands: the newer of the last frontier record and the offset record.

    Raises:
        LogError: ``frontier_missing``.
    """
    view = _frontier(settings)
    offset = control.offset
    if view is not None and (offset is None or offset.position <= view.position):
        record = view.record
        return LogPosition(
            position=record.position,
            end_lsn=record.end_lsn,
            sysid=record.sysid,
            timeline=record.timeline,
            slot=record.slot,
            last=record.last,
            max_commit_us=record.max_commit_us,
            control_end=control.end,
            ends=view.ends,
        )
    if offset is None:
        raise frontier_lost(settings)
    return _position_without_frontier(control, offset, admin)


def routed_tables(control: ControlState, frontier: Position) -> dict[TableId, RoutedTable]:
    """The tables whose events go to their topics, with their schemas as of a frontier.

    Schema versions above it were written by a transaction that will come again.

    Raises:
        LogError: ``schema_missing``.
    """
    tables = {}
    for id, record in captured_tables(control).items():
        if record.ready_from is None or is_aside(record, frontier):
            continue  # its events are spooled, or go nowhere
        schema = control.schema_at(id, record.load, frontier)
        if schema is None:
            raise LogError("schema_missing", "control has no schema of it", table=str(id))
        tables[id] = RoutedTable(schema, record.topic, record.partitions)
    return tables


def _frontier(settings: CaptureSettings) -> FrontierView | None:
    with _reader(settings) as reader:
        try:
            return reader.frontier(settings.source)
        except LogError as error:
            # Retention took what the newest record builds on: the offset record is enough.
            if error.code != "frontier_incomplete":
                raise
            return None


def _position_without_frontier(
    control: ControlState, offset: OffsetRecord, admin: LogAdmin
) -> LogPosition:
    """From the offset record alone.

    The topics' own ends serve: what lies beyond the frontier below them comes again.
    """
    topics: Mapping[str, int] = {
        record.topic: record.partitions
        for record in control.tables.values()
        if record.state == READY or record.ready_from is not None
    }
    there = admin.topic_ids(topics)
    offsets = admin.offsets_of({topic: there[topic][1] for topic in topics if topic in there})
    return LogPosition(
        position=offset.position,
        end_lsn=offset.end_lsn,
        sysid=offset.sysid,
        timeline=offset.timeline,
        slot=offset.slot,
        last=None,
        max_commit_us=0,
        control_end=control.end,
        ends={
            topic: {p: found.last_stable for p, found in parts.items()}
            for topic, parts in offsets.items()
        },
    )


def _reader(settings: CaptureSettings) -> LogReader:
    return LogReader(
        settings.bootstrap_servers, settings.log_options, topic_prefix=settings.topic_prefix
    )
