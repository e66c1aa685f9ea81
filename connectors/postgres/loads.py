"""The loads of a source beside its stream: intend, spool and copy, replay, hand over.

One step after the other as in docs/decisions/0003; every step is in control before the next one
begins, in capture's own Kafka transactions, so that the next capture goes on from there. What
changes where events go happens only at the border between two source transactions.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from cdc.control import ControlState, TableRecord
from cdc.errors import CdcError, ConfigError, LogError, SourceError, SourceStopped
from cdc.load import ChunkDone, LoadFailed, LoadProgress, LoadTask, Written
from cdc.names import TableId
from cdc.schema import TableSchema
from cdc.states import COPYING, ERRORED, INTENDED, REPLAYING
from connectors.postgres.aside import ends_load
from connectors.postgres.beginning import Beginning
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.chunk_marks import left_of, marked, plan_of, planned
from connectors.postgres.handover import Handover
from connectors.postgres.load_barrier import Barrier
from connectors.postgres.load_state import Load, LoadBook, LoadPorts
from connectors.postgres.load_topics import damaged, remove_left_over
from connectors.postgres.rekeying import has_other_key
from connectors.postgres.reloads import Reloads
from connectors.postgres.whole_loads import check_pausable, not_resumed

log = structlog.get_logger(__name__)

#: A border replays for about this long before the stream goes on, seconds.
_REPLAY_S: Final = 1.0
#: Seconds between two borders of loads that replay, at the least.
_LEAST_REST_S: Final = 0.1
_RESUMES: Final = frozenset({"no_permission", "row_security"})
_BEGIN_AGAIN: Final = frozenset({"table_rewritten", "table_changed", "load_interrupted"})


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
        self._book = LoadBook(ports, records)
        self._handover = Handover(settings, ports, self._book)
        self._loads = {
            record.id: Load(record, control.newest_schema(record.id, record.load), written=True)
            for record in control.unfinished_loads()
        }
        self._beginning = Beginning(settings, ports, self._book, self._loads, control)
        self._ended = [record for record in control.loads.values() if not record.unfinished]
        self._barrier = Barrier(ports.catalog)
        self._rest_until = 0.0
        self._reloads = Reloads(self._book)
        for load in self._loads.values():
            if load.record.state == INTENDED:
                self._beginning.hold(load)
            else:
                self._beginning.spool(load)
                load.failed = not_resumed(load, settings.name_of(load.record.id))
        self._check_keys(settings.keys)

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
    def loads(self) -> list[Load]:
        """All that are under way."""
        return list(self._loads.values())

    @property
    def border_wanted(self) -> bool:
        """Whether ``at_border`` has something to do now."""
        resting = time.monotonic() < self._rest_until
        return self._reloads.any_due or any(
            load.failed is not None
            or load.cancelled
            or (load.record.state == INTENDED and self._beginning.may_begin(load))
            or (load.record.state == REPLAYING and not resting)
            for load in self._loads.values()
        )

    # --- at the start ---

    def check_topics(self) -> None:
        """Compare the topics of loads with what was written to them; remove what is left over.

        A load whose topics are not as they were begins anew: its source still has everything.
        """
        ports = self._ports
        under_way = {
            load.record.id: load for load in self._loads.values() if load.record.state != INTENDED
        }
        records = [load.record for load in under_way.values()]
        for record, topic in damaged(ports.admin, ports.writer, records):
            under_way[record.id].failed = LogError(
                "topic_changed",
                f"topic {topic} of the load is not as it was written",
                table=self._settings.name_of(record.id),
            )
        used = {record.topic for record in self._book.records.values()}
        remove_left_over(ports.admin, self._ended, used)

    # --- what others want ---

    def request(self, ids: Sequence[TableId], priority: int = 0) -> dict[TableId, int]:
        """Begin a new load of tables, at the next border; a table that is Ready stays so.

        Returns:
            The numbers of the loads.

        Raises:
            ConfigError: ``unknown_table``, or ``load_under_way``: nothing is begun.
            CdcError: A table that was set aside still cannot be captured: nothing is begun.
        """
        for id in ids:
            if id not in self._book.records:
                raise ConfigError(
                    "unknown_table",
                    "the table is not captured",
                    table=self._settings.name_of(id),
                    remedy="one of " + ", ".join(map(self._settings.name_of, self._book.records)),
                )
            if id in self._loads:
                load = self._loads[id].record
                raise ConfigError(
                    "load_under_way",
                    f"load {load.load} of the table is under way ({load.state})",
                    table=self._settings.name_of(id),
                    remedy="cdc status shows how far it is",
                )
        aside = [id for id in ids if self._book.records[id].state == ERRORED]
        if aside and (refused := self._ports.publish(aside)):
            raise next(iter(refused.values()))
        for id in ids:
            self._loads[id] = self._beginning.intended(id, priority=priority)
        return {id: self._loads[id].record.load for id in ids}

    def pause(self, ids: Sequence[TableId], *, paused: bool) -> None:
        """Copy no more chunks of these tables, or go on with them; their events are spooled.

        Raises:
            ConfigError: ``no_load``, ``load_not_pausable``: nothing is changed.
        """
        loads = self._under_way(ids)
        for load in loads if paused else ():
            check_pausable(load, self._settings.name_of(load.record.id))
        for load in loads:
            if load.record.paused == paused:
                continue
            load.record = dataclasses.replace(load.record, paused=paused)
            if load.written:
                self._ports.router.control.append(load.record.to_key_value())
            if paused:
                self._ports.copier.cancel(load.key)
                load.partial.clear()
            elif load.clear and load.record.state == COPYING:
                self._copy(load)

    def cancel(self, ids: Sequence[TableId]) -> None:
        """End loads of tables that are served without them, at the next border.

        Raises:
            ConfigError: ``no_load``, ``first_load``: nothing is changed.
        """
        loads = self._under_way(ids)
        for load in loads:
            if self._book.records[load.record.id].ready_from is None:
                raise ConfigError(
                    "first_load",
                    "the table was never loaded; without this load it has no data",
                    table=self._settings.name_of(load.record.id),
                    remedy="take it out of cdc.yaml and run cdc reload, or pause the load",
                )
        for load in loads:
            load.cancelled = True

    def _under_way(self, ids: Sequence[TableId]) -> list[Load]:
        for id in ids:
            if id not in self._loads:
                raise ConfigError(
                    "no_load", "no load of the table is under way", table=self._settings.name_of(id)
                )
        return [self._loads[id] for id in ids]

    def drop(self, id: TableId) -> None:
        """A table is not captured any more; control says so already."""
        load = self._loads.pop(id, None)
        if load is None:
            return
        self._beginning.leave(load)
        self._beginning.remove_topics(load.record)

    def join(
        self, control: ControlState, keys: Mapping[TableId, tuple[str, ...]], *, try_again: bool
    ) -> None:
        """Take up loads that were intended in control meanwhile.

        Args:
            control: The source's control topic.
            keys: That cdc.yaml gives now.
            try_again: At once, whether tables that were set aside can be captured.
        """
        if try_again:
            self._reloads.hurry(self._loads)
        self._check_keys(keys)
        for record in control.unfinished_loads():
            if record.id not in self._loads:
                load = self._loads[record.id] = Load(record, written=True)
                self._beginning.count(record)
                self._beginning.hold(load)

    def _check_keys(self, keys: Mapping[TableId, tuple[str, ...]]) -> None:
        for id, load in self._loads.items():
            if load.schema is not None and has_other_key(load.schema, keys.get(id)):
                load.failed = SourceError("key_chosen", "cdc.yaml gives the table another key")

    def under_way(self, ids: Iterable[TableId]) -> list[TableId]:
        """Those of the tables whose load is not done."""
        return [id for id in ids if id in self._loads]

    def begin_anew(self, gaps: dict[TableId, SourceStopped]) -> None:
        """Events may have been missed of tables: loads of them begin anew, at the next border."""
        for id in list(gaps):
            error = gaps.pop(id)
            if id in self._loads:
                self._loads[id].failed = error

    def why_ended(self, id: TableId, number: int) -> CdcError | None:
        """Why a load could not be done, if it could not."""
        return self._beginning.given_up.get((id, number))

    # --- at any time ---

    def tick(self) -> None:
        """Go on with copying; called at least twice a second.

        Raises:
            CdcError: Nothing can be copied as things are; nothing is lost.
        """
        self._reloads.look(self._loads)
        self._beginning.hurry()
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
                case ChunkDone(chunk=chunk, rows=rows, snapshot=snapshot):
                    self._chunk_done(load, chunk, rows, snapshot)
                case LoadFailed(error=error):
                    # With the permission back it goes on at the chunks that are left.
                    ends = ends_load(error) and error.code not in _RESUMES
                    if not ends and error.code not in _BEGIN_AGAIN:
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
        self._beginning.try_again(self._reloads.take())
        for load in list(self._loads.values()):
            if load.cancelled:
                self._beginning.cancel(load)
            elif load.failed is not None:
                self._beginning.begin_again(load)
        intended = [load for load in self._loads.values() if load.record.state == INTENDED]
        if intended:
            self._beginning.write_intents([load for load in intended if not load.written])
        if ready := [load for load in intended if self._beginning.may_begin(load)]:
            self._beginning.begin_spooling(ready)
            # It has to be taken after this commit.
            self._barrier = Barrier(self._ports.catalog)
        began = time.monotonic()
        until = began + _REPLAY_S
        replayed = []
        for load in [load for load in self._loads.values() if load.record.state == REPLAYING]:
            try:
                if self._handover.replay(load, until):
                    replayed.append(load)
            except SourceStopped as stopped:
                self._ports.writer.abort()
                load.failed = stopped
            if time.monotonic() > until:
                break
        if replayed:
            self._handover.hand_over(replayed)
            for load in replayed:
                del self._loads[load.record.id]
        # As long again for the stream, whose other tables go on; with nothing to replay, each of
        # its transactions would be a commit of its own.
        now = time.monotonic()
        self._rest_until = now + max(now - began, _LEAST_REST_S)

    # --- inside: copying ---

    def _open_barrier(self) -> None:
        """Let chunks be read once every transaction that could escape the spool has ended."""
        waiting = [
            load
            for load in self._loads.values()
            if load.record.state == COPYING and load.schema is not None and not load.clear
        ]
        if waiting and self._barrier.passed():
            for load in waiting:
                load.clear = True
            self._give(waiting)

    def _give(self, loads: Sequence[Load]) -> None:
        """Plan what is not planned yet, and hand everything to the copier, large tables first."""
        unplanned = [load for load in loads if not load.record.chunks]
        measured = self._ports.copier.measure(
            [load.schema for load in unplanned if load.schema is not None]
        )
        for load, measure in zip(unplanned, measured, strict=True):
            load.record = planned(load.record, measure)
            self._ports.router.control += [load.record.to_key_value()]
        for load in sorted(loads, key=lambda load: -plan_of(load.record).size):
            if not load.record.paused:
                self._copy(load)

    def _copy(self, load: Load) -> None:
        """Hand what is left of a load to the copier."""
        left = left_of(load.record)
        if not left:
            self._all_copied(load)
            return
        record, schema = load.record, load.schema
        if schema is None or record.consistent_point is None or record.filenode is None:
            raise LogError("schema_missing", "control lacks its load", table=str(record.id))
        self._ports.copier.begin(
            LoadTask(
                # Later versions come only with the replay, when nothing is left to copy.
                schema=schema,
                filenode=record.filenode,
                topic=record.topic,
                partitions=self._book.records[record.id].partitions,
                spool_from=record.consistent_point,
                plan=plan_of(record),
                left=left,
                priority=record.priority,
            )
        )
        self._tell(load)

    def _chunk_done(self, load: Load, chunk: int, rows: int, snapshot: str | None) -> None:
        load.partial.pop(chunk, None)
        before = load.record
        load.record = marked(before, chunk, rows, snapshot)
        if load.record is before:
            return
        self._ports.router.control += [load.record.to_key_value()]
        self._tell(load)
        if not left_of(load.record):
            self._all_copied(load)

    def _all_copied(self, load: Load) -> None:
        """From here on the spool is replayed; readers may begin at what is WAL by now."""
        after = self._ports.catalog.insert_lsn()
        self._ports.router.control += self._book.now(load, state=REPLAYING, ready_after=after)
        log.info("copied", table=self._settings.name_of(load.record.id), rows=load.record.rows)
        self._tell(load)

    # --- inside: telling ---

    def _tell(self, load: Load) -> None:
        record = load.record
        self._ports.progress(LoadProgress(record.id, load.rows, record.estimate, done=False))

    def _named(self, error: CdcError, load: Load) -> CdcError:
        error.table = self._settings.name_of(load.record.id)
        return error
