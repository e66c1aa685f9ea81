"""The end of a load: its spool is replayed, and the table becomes Ready."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Final

import structlog

from cdc.control import KeyValue
from cdc.errors import LogError
from cdc.failpoints import failpoint
from cdc.load import LoadProgress
from cdc.position import frontier
from cdc.states import DONE, READY, TABLE_TRANSITIONS, check_transition
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.load_state import Load, LoadBook, LoadPorts
from connectors.postgres.replay import Replay, Replayed
from connectors.postgres.routes import RoutedTable
from connectors.postgres.seen import Snapshot

log = structlog.get_logger(__name__)

_FLUSH_AFTER_S: Final = 0.5


class Handover:
    """Replays spools and hands tables over to the stream; only at borders.

    Args:
        settings: Of the capture.
        ports: What to work with.
        book: Of the loads.
    """

    def __init__(self, settings: CaptureSettings, ports: LoadPorts, book: LoadBook) -> None:
        self._settings = settings
        self._ports = ports
        self._book = book

    def replay(self, load: Load, until: float) -> bool:
        """Replay for a while.

        Args:
            load: In state replaying.
            until: Monotonic seconds.

        Returns:
            Whether nothing is left and the frontier is far enough: the table can be handed
            over at this border.

        Raises:
            SourceStopped: An event does not fit the load.
            CdcError: From Postgres or Kafka.
        """
        writer, record = self._ports.writer, load.record
        spool = record.spool or ""
        replay = load.replay = load.replay or self._new_replay(load)
        failpoint("before_replay")
        while replay.at.offset < (end := writer.ends_of(spool).get(0, 0)):
            writer.open()
            control = replay.step(end)
            after = record.ready_after
            if replay.guessed:
                after = self._ports.catalog.insert_lsn()
                replay.exact_from(after)
            record = load.record = dataclasses.replace(
                load.record,
                ready_after=after,
                replayed=replay.at.position,
                spool_offset=replay.at.offset,
                relation_offset=replay.at.relation_offset,
            )
            self._book.commit([*control, load.record.to_key_value()])
            failpoint("after_replay_step")
            if time.monotonic() > until and replay.at.offset < end:
                return False
        if record.ready_after is None or writer.end_lsn < record.ready_after:
            self._hurry(load)
            return False
        return True

    def _hurry(self, load: Load) -> None:
        """Only WAL that the server has yet to tell of keeps the table from being Ready."""
        now = time.monotonic()
        if load.waits_since is None:
            load.waits_since = now
        elif now - load.waits_since > _FLUSH_AFTER_S:
            load.waits_since = now
            self._ports.catalog.flush_wal()
        self._ports.ask_position()

    def _new_replay(self, load: Load) -> Replay:
        record, schema = load.record, load.schema
        if schema is None:
            raise LogError("schema_missing", "control has no schema of it", table=str(record.id))
        table = RoutedTable(schema, record.topic, self._book.records[record.id].partitions)
        copied_at = record.ready_after or 0
        return Replay(
            self._ports.reader,
            self._ports.replay_router(table),
            record.spool or "",
            Replayed(record.spool_offset, record.replayed, record.relation_offset),
            copied_at,
            self._ports.keep_alive,
            Snapshot.parse(record.snapshot, copied_at) if schema.counted else None,
        )

    def hand_over(self, loads: Sequence[Load]) -> None:
        """Everything is in the topics: the tables are Ready, all from this frontier on.

        Args:
            loads: For which ``replay`` was true at this border.

        Raises:
            CdcError: From Kafka.
        """
        ports, book = self._ports, self._book
        partitions = {load.record.topic: book.records[load.record.id].partitions for load in loads}
        # Nobody else writes there any more, so their ends now are the loads'.
        offsets = ports.admin.offsets_of(partitions)
        ports.writer.include(
            {
                topic: {p: found.end for p, found in parts.items()}
                for topic, parts in offsets.items()
            }
        )
        position = frontier(ports.writer.position.epoch, ports.writer.end_lsn)
        control: list[KeyValue] = []
        for load in loads:
            record, table = load.record, book.records[load.record.id]
            control += book.now(load, state=DONE)
            check_transition(TABLE_TRANSITIONS, table.state, READY)
            ready = dataclasses.replace(
                table,
                state=READY,
                load=record.load,
                topic=record.topic,
                topic_id=record.topic_id,
                ready_from=position,
                last_good=None,
                reason=None,
                remedy=None,
                aside=None,
            )
            book.records[record.id] = ready
            control.append(ready.to_key_value())
        spools = [load.record.spool for load in loads if load.record.spool is not None]
        for spool in spools:
            ports.writer.forget(spool)
        failpoint("before_ready")
        book.commit(control)
        failpoint("after_ready")
        for load in loads:
            self._route(load)
        ports.admin.delete_topics(spools)

    def _route(self, load: Load) -> None:
        """From here on, the table's events go to its topic directly."""
        record, replay = load.record, load.replay
        if replay is None:
            raise RuntimeError("handed over before it was replayed")
        schema = replay.schema()
        partitions = self._book.records[record.id].partitions
        self._ports.router.end_spool(schema.relid)
        self._ports.router.adopt(RoutedTable(schema, record.topic, partitions))
        log.info("ready", table=self._settings.name_of(record.id), rows=record.rows)
        self._ports.progress(LoadProgress(record.id, record.rows, record.estimate, done=True))
