"""The loads of a source beside its stream: intend, spool and copy, replay, hand over.

One step after the other as in docs/decisions/0003; every step is in control before the next one
begins, in capture's own Kafka transactions, so that the next capture goes on from there. What
changes where events go happens only at the border between two source transactions.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from cdc.control import ControlState, KeyValue, LoadRecord, TableRecord, schema_key_value
from cdc.errors import CdcError, LogError, SourceRefused, SourceStopped
from cdc.failpoints import failpoint
from cdc.load import (
    ChunkDone,
    ChunkPlan,
    Copier,
    LoadFailed,
    LoadKey,
    LoadProgress,
    LoadTask,
    Written,
)
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.log.topics import spool_topic as spool_spec
from cdc.log.topics import table_topic
from cdc.names import TableId, spool_topic, topic_name
from cdc.position import frontier, snapshot_position
from cdc.schema import TableSchema
from cdc.states import (
    ABANDONED,
    COPYING,
    DONE,
    INTENDED,
    LOAD_TRANSITIONS,
    READY,
    REPLAYING,
    TABLE_STATE_OF_LOAD,
    TABLE_TRANSITIONS,
    check_transition,
)
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.chunk_marks import left_of, mark
from connectors.postgres.load_catalog import LoadCatalog, pub_rel_of
from connectors.postgres.log_writer import LogWriter
from connectors.postgres.replay import Replay, Replayed
from connectors.postgres.router import Router
from connectors.postgres.routes import RoutedTable

log = structlog.get_logger(__name__)

KIND: Final = "chunks"
#: A border replays for about this long before the stream goes on, seconds.
_REPLAY_S: Final = 1.0
_BARRIER_EVERY_S: Final = 0.2
_BARRIER_WARN_S: Final = 10.0
#: A table that is rewritten or altered again and again is given up after so many loads.
_MOST_ATTEMPTS: Final = 5
#: Another load would meet the same row.
_OF_A_ROW: Final = frozenset({"bad_value", "record_too_large"})
_BEGIN_AGAIN: Final = frozenset({"table_rewritten", "table_changed"})


@dataclass(slots=True)
class _Load:
    """A load under way; ``record`` is what control says, or will say with the next commit."""

    record: LoadRecord
    schema: TableSchema | None = None
    #: No transaction is open that could have escaped the spool.
    clear: bool = False
    given: bool = False
    partial: dict[int, int] = field(default_factory=dict)
    replay: Replay | None = None
    #: Why it has to begin anew.
    failed: CdcError | None = None

    @property
    def key(self) -> LoadKey:
        return self.record.id, self.record.load

    @property
    def rows(self) -> int:
        return self.record.rows + sum(self.partial.values())


@dataclass(frozen=True, slots=True)
class LoadPorts:
    """What the loads work with; all of one streaming connection.

    Args:
        admin: Of the log.
        reader: Of the log.
        copier: Of the source.
        catalog: Asks the source.
        router: Of the stream.
        writer: Of the log.
        replay_router: Makes a router for the replay of one table.
        filenodes: By relation id, of tables whose columns are as we know them.
        keep_alive: Keeps Postgres informed while something takes long.
        progress: Told of rows that were copied.
    """

    admin: LogAdmin
    reader: LogReader
    copier: Copier
    catalog: LoadCatalog
    router: Router
    writer: LogWriter
    replay_router: Callable[[RoutedTable], Router]
    filenodes: dict[int, int]
    keep_alive: Callable[[], None]
    progress: Callable[[LoadProgress], None]


class Loads:
    """All loads of a source that are not done.

    Args:
        settings: Of the capture.
        ports: What to work with.
        control: The source's control topic at the start of the connection.
        records: Of all tables; kept up to date.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        ports: LoadPorts,
        control: ControlState,
        records: dict[TableId, TableRecord],
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._records = records
        self._epoch = control.source.epoch if control.source is not None else 0
        self._numbers = {
            id: max((n for table, n in control.loads if table == id), default=0) for id in records
        }
        self._loads = {
            record.id: _Load(record, control.newest_schema(record.id, record.load))
            for record in control.unfinished_loads()
        }
        self._ended = [
            record if record.state == ABANDONED else dataclasses.replace(record, topic="")
            for record in control.loads.values()
            if not record.unfinished and record.spool
        ]
        self._barrier: int | None = None
        self._barrier_asked = 0.0
        self._barrier_since = 0.0
        self._barrier_warned = 0.0
        for load in self._loads.values():
            if load.record.state != INTENDED:
                self._spool(load)

    # --- what others ask ---

    @property
    def active(self) -> bool:
        """Whether any load is under way."""
        return bool(self._loads)

    @property
    def schemas(self) -> dict[TableId, TableSchema]:
        """Of the tables that are being loaded, as far as they are known."""
        return {id: load.schema for id, load in self._loads.items() if load.schema is not None}

    @property
    def border_wanted(self) -> bool:
        """Whether ``at_border`` has something to do."""
        return any(
            load.failed is not None or load.record.state in (INTENDED, REPLAYING)
            for load in self._loads.values()
        )

    # --- at the start ---

    def check_topics(self) -> None:
        """Compare the topics of loads with what was written to them; remove what is left over.

        A load whose topics are not as they were begins anew: its source still has everything.
        """
        admin, writer = self._ports.admin, self._ports.writer
        under_way = [load for load in self._loads.values() if load.record.state != INTENDED]
        there = admin.topic_ids(_topics(load.record for load in under_way))
        offsets = admin.offsets_of({topic: found[1] for topic, found in there.items()})
        for load in under_way:
            record = load.record
            for topic in _topics([record]):
                ends = {p: found.end for p, found in offsets.get(topic, {}).items()}
                wanted = writer.ends_of(topic)
                if (
                    topic not in there
                    or (topic == record.topic and there[topic][0] != record.topic_id)
                    or any(ends.get(p, 0) < end for p, end in wanted.items())
                ):
                    load.failed = LogError(
                        "topic_changed",
                        f"topic {topic} of the load is not as it was written",
                        table=self._settings.name_of(record.id),
                    )
        left = _topics(self._ended)
        used = {record.topic for record in self._records.values()}
        admin.delete_topics(admin.topic_ids(t for t in left if t not in used))

    # --- at any time ---

    def tick(self) -> None:
        """Go on with copying; called at least twice a second.

        Raises:
            CdcError: A load cannot be done as things are; nothing of it is lost.
        """
        if not self._loads:
            return
        for event in self._ports.copier.poll():
            load = self._loads.get(event.load[0])
            if load is None or load.key != event.load or load.failed is not None:
                continue
            match event:
                case Written(chunk=chunk, rows=rows):
                    load.partial[chunk] = rows
                    self._tell(load)
                case ChunkDone(chunk=chunk, rows=rows):
                    self._chunk_done(load, chunk, rows)
                case LoadFailed(error=error):
                    if error.code not in _BEGIN_AGAIN:
                        raise self._named(error, load)
                    load.failed = error
        self._open_barrier()

    def close(self) -> None:
        """End the workers; what is not marked as done is copied again later."""
        self._ports.copier.close()

    # --- at the border between two transactions ---

    def at_border(self) -> None:
        """Begin spooling, replay, hand over; the log is complete up to the frontier here.

        Raises:
            CdcError: From Postgres or Kafka.
        """
        for load in [load for load in self._loads.values() if load.failed is not None]:
            self._begin_again(load)
        intended = [load for load in self._loads.values() if load.record.state == INTENDED]
        if intended:
            self._begin_spooling(intended)
        until = time.monotonic() + _REPLAY_S
        for load in [load for load in self._loads.values() if load.record.state == REPLAYING]:
            try:
                self._replay(load, until)
            except SourceStopped as stopped:
                self._ports.writer.abort()
                if stopped.code in _OF_A_ROW:
                    raise SourceRefused(
                        stopped.code,
                        stopped.message,
                        table=stopped.table,
                        position=stopped.position,
                        remedy=stopped.remedy,
                    ) from None
                load.failed = stopped
            if time.monotonic() > until:
                break

    # --- inside: beginning ---

    def _begin_spooling(self, loads: Sequence[_Load]) -> None:
        """Topics, schemas, then: from this frontier on, events go to the spools."""
        ports = self._ports
        records = [load.record for load in loads]
        # Left by an attempt that got no further; the intent says that they are ours.
        ports.admin.delete_topics(_topics(records))
        ids = self._create_topics(records)
        failpoint("after_topics")
        definitions = ports.catalog.definitions([record.id for record in records])
        point = ports.writer.end_lsn
        changed: list[KeyValue] = []
        for load in loads:
            record, definition = load.record, definitions[load.record.id]
            load.schema = definition.schema(record.load, snapshot_position(self._epoch, point))
            changed += [
                schema_key_value(load.schema),
                *self._now(
                    load,
                    state=COPYING,
                    topic_id=ids[record.topic],
                    consistent_point=point,
                ),
            ]
            table = self._records[record.id]
            if table.state != READY:
                table = self._records[record.id] = dataclasses.replace(
                    table,
                    topic_id=ids[record.topic],
                    relid=definition.relid,
                    filenode=definition.filenode,
                    pub_rel=pub_rel_of(definition),
                )
                changed.append(table.to_key_value())
        failpoint("before_spooling")
        self._commit(changed)
        failpoint("after_spooling")
        for load in loads:
            self._spool(load)
        # Taken anew: it has to be later than this commit.
        self._barrier = None
        log.info("loading", tables=len(loads), spooled_from=f"{point:X}")

    def _create_topics(self, records: Sequence[LoadRecord]) -> dict[str, str]:
        settings = self._settings
        specs = []
        for record in records:
            specs += [
                table_topic(
                    record.topic,
                    partitions=self._records[record.id].partitions,
                    replication_factor=settings.replication_factor,
                    history_ms=settings.history_ms,
                ),
                spool_spec(record.spool or "", replication_factor=settings.replication_factor),
            ]
        found: dict[str, str] = {}
        for at in range(0, len(specs), _TOPICS_AT_ONCE):
            infos = self._ports.admin.create_topics(specs[at : at + _TOPICS_AT_ONCE])
            found |= {name: info.topic_id for name, info in infos.items()}
            self._ports.keep_alive()
        return found

    def _spool(self, load: _Load) -> None:
        schema, spool = load.schema, load.record.spool
        if schema is None or spool is None:
            raise LogError("schema_missing", "control has no schema of it", table=str(load.key[0]))
        self._ports.router.spool(schema.relid, spool)
        filenode = self._records[load.record.id].filenode
        if filenode is not None:
            self._ports.filenodes[schema.relid] = filenode

    def _begin_again(self, load: _Load) -> None:
        """Abandon a load, and intend the next one of its table."""
        error, record = load.failed, load.record
        if error is None:
            return
        if record.attempt + 1 >= _MOST_ATTEMPTS:
            raise SourceRefused(
                "load_not_possible",
                f"{record.attempt + 1} loads in a row had to begin anew; the last time: "
                f"{error.message}",
                table=self._settings.name_of(record.id),
                remedy="leave the table's form as it is while it is loaded, then start again",
            )
        log.warning(
            "the load begins anew",
            table=self._settings.name_of(record.id),
            code=error.code,
            reason=error.message,
        )
        self._ports.copier.cancel(load.key)
        if load.schema is not None:
            self._ports.router.end_spool(load.schema.relid)
        abandoned = self._now(load, state=ABANDONED)
        following = self._intended(record.id, attempt=record.attempt + 1)
        self._loads[record.id] = following
        self._commit([*abandoned, *self._now(following)])
        for topic in _topics([record]):
            self._ports.writer.forget(topic)
        self._ports.admin.delete_topics(_topics([record]))

    def _intended(self, id: TableId, attempt: int = 0, *, hashed: bool = False) -> _Load:
        number = self._numbers[id] = self._numbers[id] + 1
        return _Load(intended_load(self._settings, id, number, attempt=attempt, hashed=hashed))

    # --- inside: copying ---

    def _open_barrier(self) -> None:
        """Let chunks be read once every transaction that could escape the spool has ended."""
        waiting = [
            load
            for load in self._loads.values()
            if load.record.state == COPYING and load.schema is not None and not load.clear
        ]
        now = time.monotonic()
        if not waiting or now - self._barrier_asked < _BARRIER_EVERY_S:
            return
        self._barrier_asked = now
        if self._barrier is None:
            self._barrier = self._ports.catalog.next_xid()
            self._barrier_since = self._barrier_warned = now
        if self._ports.catalog.oldest_xid() < self._barrier:
            if now - self._barrier_warned >= _BARRIER_WARN_S:
                self._barrier_warned = now
                log.warning(
                    "the load waits for transactions that were open when it began",
                    seconds=round(now - self._barrier_since),
                    holders=self._ports.catalog.holders(),
                )
            return
        self._barrier = None
        for load in waiting:
            load.clear = True
        self._give(waiting)

    def _give(self, loads: Sequence[_Load]) -> None:
        """Plan what is not planned yet, and hand everything to the copier, large tables first."""
        unplanned = [load for load in loads if not load.record.chunks]
        measured = self._ports.copier.measure(
            [load.schema for load in unplanned if load.schema is not None]
        )
        for load, measure in zip(unplanned, measured, strict=True):
            plan = measure.plan
            load.record = dataclasses.replace(
                load.record, chunks=plan.count, step=plan.step, estimate=measure.rows
            )
            self._ports.router.control += [load.record.to_key_value()]
        for load in sorted(loads, key=lambda load: -load.record.chunks * load.record.step):
            left = left_of(load.record)
            load.given = True
            if not left:
                self._all_copied(load)
                continue
            record, schema = load.record, load.schema
            table = self._records[record.id]
            if schema is None or record.consistent_point is None or table.filenode is None:
                raise LogError("schema_missing", "control lacks its load", table=str(record.id))
            self._ports.copier.begin(
                LoadTask(
                    # Later versions come only with the replay, when nothing is left to copy.
                    schema=schema,
                    filenode=table.filenode,
                    topic=record.topic,
                    partitions=table.partitions,
                    spool_from=record.consistent_point,
                    plan=ChunkPlan(record.step, record.chunks),
                    left=left,
                )
            )
            self._tell(load)

    def _chunk_done(self, load: _Load, chunk: int, rows: int) -> None:
        load.partial.pop(chunk, None)
        done = mark(load.record.done, chunk)
        if done == load.record.done:
            return
        load.record = dataclasses.replace(load.record, done=done, rows=load.record.rows + rows)
        self._ports.router.control += [load.record.to_key_value()]
        self._tell(load)
        if not left_of(load.record):
            self._all_copied(load)

    def _all_copied(self, load: _Load) -> None:
        """From here on the spool is replayed; readers may begin at what is WAL by now."""
        after = self._ports.catalog.insert_lsn()
        self._ports.router.control += self._now(load, state=REPLAYING, ready_after=after)
        log.info("copied", table=self._settings.name_of(load.record.id), rows=load.record.rows)
        self._tell(load)

    # --- inside: replaying ---

    def _replay(self, load: _Load, until: float) -> None:
        """Replay for a while; hand over when nothing is left and the frontier is far enough."""
        writer, record = self._ports.writer, load.record
        spool = record.spool or ""
        replay = load.replay = load.replay or self._new_replay(load)
        failpoint("before_replay")
        while replay.at.offset < (end := writer.ends_of(spool).get(0, 0)):
            writer.open()
            control = replay.step(end)
            load.record = dataclasses.replace(
                load.record,
                replayed=replay.at.position,
                spool_offset=replay.at.offset,
                relation_offset=replay.at.relation_offset,
            )
            self._commit([*control, load.record.to_key_value()])
            failpoint("after_replay_step")
            if time.monotonic() > until and replay.at.offset < end:
                return
        if record.ready_after is not None and writer.end_lsn >= record.ready_after:
            self._hand_over(load, replay.schema())

    def _new_replay(self, load: _Load) -> Replay:
        record, schema = load.record, load.schema
        if schema is None:
            raise LogError("schema_missing", "control has no schema of it", table=str(record.id))
        table = RoutedTable(schema, record.topic, self._records[record.id].partitions)
        return Replay(
            self._ports.reader,
            self._ports.replay_router(table),
            record.spool or "",
            Replayed(record.spool_offset, record.replayed, record.relation_offset),
            self._ports.keep_alive,
        )

    def _hand_over(self, load: _Load, schema: TableSchema) -> None:
        """Everything is in the topic: Ready, from this frontier on."""
        ports, record = self._ports, load.record
        table = self._records[record.id]
        offsets = ports.admin.offsets_of({record.topic: table.partitions})[record.topic]
        # Nobody else writes there any more, so its end now is the load's.
        ports.writer.include({record.topic: {p: found.end for p, found in offsets.items()}})
        ready = dataclasses.replace(
            table,
            load=record.load,
            topic=record.topic,
            topic_id=record.topic_id,
            ready_from=frontier(self._epoch, ports.writer.end_lsn),
        )
        done = self._now(load, state=DONE)
        check_transition(TABLE_TRANSITIONS, table.state, READY)
        self._records[record.id] = ready = dataclasses.replace(ready, state=READY)
        if record.spool:
            ports.writer.forget(record.spool)
        failpoint("before_ready")
        self._commit([*done, ready.to_key_value()])
        failpoint("after_ready")
        ports.router.end_spool(schema.relid)
        ports.router.adopt(RoutedTable(schema, record.topic, table.partitions))
        del self._loads[record.id]
        if record.spool:
            ports.admin.delete_topics([record.spool])
        log.info(
            "ready",
            table=self._settings.name_of(record.id),
            rows=record.rows,
            position=str(ready.ready_from),
        )
        self._ports.progress(LoadProgress(record.id, record.rows, record.estimate, done=True))

    # --- inside: control ---

    def _now(self, load: _Load, **changes: object) -> list[KeyValue]:
        """Change a load, and its table if that follows; the control records that say so."""
        before = load.record
        load.record = dataclasses.replace(before, **changes)  # type: ignore[arg-type]
        check_transition(LOAD_TRANSITIONS, before.state, load.record.state)
        found = [load.record.to_key_value()]
        table = self._records[before.id]
        state = TABLE_STATE_OF_LOAD.get(load.record.state)
        if table.state != READY and state is not None and state not in (table.state, READY):
            check_transition(TABLE_TRANSITIONS, table.state, state)
            table = dataclasses.replace(
                table,
                state=state,
                load=load.record.load,
                topic=load.record.topic,
                topic_id=load.record.topic_id,
            )
            self._records[before.id] = table
            found.append(table.to_key_value())
        return found

    def _commit(self, control: Iterable[KeyValue]) -> None:
        """Commit with the frontier as it is."""
        writer = self._ports.writer
        waiting = self._ports.router.take_control()
        writer.advance(writer.end_lsn, writer.last, [*waiting, *control])

    def _tell(self, load: _Load) -> None:
        record = load.record
        self._ports.progress(LoadProgress(record.id, load.rows, record.estimate, done=False))

    def _named(self, error: CdcError, load: _Load) -> CdcError:
        error.table = self._settings.name_of(load.record.id)
        return error


_TOPICS_AT_ONCE: Final = 200


def intended_load(
    settings: CaptureSettings, id: TableId, number: int, *, attempt: int = 0, hashed: bool = False
) -> LoadRecord:
    """The record of a load of which nothing exists yet."""
    names = (settings.topic_prefix, settings.source, *id, number)
    return LoadRecord(
        id,
        number,
        topic_name(*names, hashed=hashed),
        None,
        KIND,
        None,
        INTENDED,
        slot=settings.slot,
        spool=spool_topic(*names, hashed=hashed),
        attempt=attempt,
    )


def _topics(records: Iterable[LoadRecord]) -> list[str]:
    return [topic for record in records for topic in (record.topic, record.spool) if topic]
