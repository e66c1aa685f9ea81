"""Capture of one source: fence, begin or check, stream and load; stop the source where it must.

start ── first start, unless there is a frontier ── start checks ── stream, and loads beside it

What cannot be captured: replay up to before its transaction and record Errored. If it is one
table's, stream again without that table; else end.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

import structlog

from cdc.control import ControlState, TableRecord
from cdc.daemon.channel import ChildChannel
from cdc.errors import SourceStopped
from cdc.load import MakeCopier
from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.reader import LogReader
from cdc.names import TableId
from cdc.schema import TableSchema
from connectors.postgres.aside import ended_loads, errored_records
from connectors.postgres.capture_commands import CaptureCommands
from connectors.postgres.capture_reports import CaptureReports
from connectors.postgres.capture_settings import CaptureSettings, copy_settings
from connectors.postgres.client import ReplicationClient, connect_sql
from connectors.postgres.firststart import FirstStart, StartHooks
from connectors.postgres.leftovers import free_slot
from connectors.postgres.load_catalog import LoadCatalog
from connectors.postgres.load_state import LoadPorts
from connectors.postgres.loads import Loads
from connectors.postgres.log_check import check_log
from connectors.postgres.log_state import (
    captured_tables,
    fence,
    is_begun,
    read_control,
    read_position,
    routed_tables,
)
from connectors.postgres.log_writer import LogPosition, LogWriter
from connectors.postgres.router import Router
from connectors.postgres.side_connection import SideConnection
from connectors.postgres.source_watch import SourceWatch
from connectors.postgres.startcheck import (
    check_errored,
    check_names,
    check_server,
    check_slot,
)
from connectors.postgres.stopping import StoppedAt, StopRequest
from connectors.postgres.stream import Stream
from connectors.postgres.stream_hooks import LONGEST_READ_S, StreamHooks
from connectors.postgres.table_set import NothingChanged, publish_again, settle_tables

log = structlog.get_logger(__name__)

#: While tables are loaded, workers are listened to as often.
_LOADING_READ_S: Final = 0.05


class StopAsked(Exception):
    """A stop was asked for before streaming began."""


class Capture:
    """One source's capture process.

    Args:
        settings: Of the capture.
        make_copier: Makes what copies the chunks of loads.
        channel: To the daemon.
        stop: Set when this process is to end.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        make_copier: MakeCopier,
        channel: ChildChannel,
        stop: StopRequest,
    ) -> None:
        self._settings = settings
        self._make_copier = make_copier
        self._channel = channel
        self._stop = stop
        self._admin = LogAdmin(settings.bootstrap_servers, settings.log_options)
        self._stream: Stream | None = None
        self._router: Router
        self._writer: LogWriter
        self._reader: LogReader
        self._records: dict[TableId, TableRecord] = {}
        self._watch: SourceWatch
        self._loads: Loads | None = None
        self._reports = CaptureReports(settings, channel)
        self._commands = CaptureCommands(settings, channel, self._reports.rows)

    def run(self) -> None:
        """Capture until a stop is asked for.

        Raises:
            SourceStopped: The source is stopped; its tables are Errored in control.
            CdcError: Anything else; see the exit codes of ``capture_child``.
        """
        settings = self._settings
        self._channel.state("starting")
        fence(settings)
        control = read_control(settings)
        try:
            if not is_begun(control):
                self._begin(control)
                control = read_control(settings)
            self._go_on(control)
        except StopAsked:
            log.info("stopped before streaming began")

    # --- first start ---

    def _begin(self, control: ControlState) -> None:
        settings = self._settings
        with TransactionalProducer(
            settings.bootstrap_servers, settings.transactional_id, settings.log_options
        ) as producer:
            producer.init()
            hooks = StartHooks(self._check_stop, self._slot_waits)
            FirstStart(settings, self._admin, producer, hooks).run(control)

    def _check_stop(self) -> None:
        self._answer_commands()
        if self._stop.requested:
            raise StopAsked

    def _slot_waits(self, seconds: float) -> None:
        self._check_stop()
        self._channel.state("loading", waiting_for_slot_s=round(seconds))
        if round(seconds) % 10 == 0:
            log.warning(
                "the server waits for open transactions before it makes the slot",
                seconds=round(seconds),
            )

    # --- streaming ---

    def _go_on(self, control: ControlState) -> None:
        settings = self._settings
        check_names(settings, control)
        check_errored(settings, control)
        self._records = captured_tables(control)
        position = read_position(settings, control, self._admin)
        limit, gaps = check_log(settings, self._admin, self._records, position)
        with (
            LogReader(settings.bootstrap_servers, settings.log_options) as reader,
            TransactionalProducer(
                settings.bootstrap_servers,
                settings.transactional_id,
                settings.log_options,
                max_message_bytes=limit,
                waiting=self._kafka_waits,
            ) as producer,
        ):
            self._reader = reader
            producer.init()
            self._writer = LogWriter(
                producer, settings.control_topic, settings.frontier_topic, position
            )
            try:
                control = settle_tables(settings, self._admin, self._writer, control)
            except NothingChanged as refused:
                raise refused.error from None
            self._records = captured_tables(control)
            for id in sorted(gaps.keys() & self._records.keys()):
                self._writer.forget(self._records[id].topic)
                self._set_aside(gaps[id])
                control = read_control(settings)
            while True:
                try:
                    self._run_stream(producer, control, position, stop_before=None)
                    return
                except StoppedAt as stopped:
                    at = stopped
                except SourceStopped as stopped:
                    at = StoppedAt(None, stopped)
                if not self._stop_at(producer, position, at):
                    return
                control = read_control(settings)

    def _change_tables(self, loads: Loads) -> None:
        """The same at a border, while everything else goes on."""
        asked = self._commands.take_tables()
        if asked is None and not self._watch.tables_changed:
            return
        before, self._settings = self._settings, asked or self._settings
        wanted, self._watch.tables_changed = self._settings, False
        # What waits for the next commit belongs to tables as they were.
        self._writer.advance(self._writer.end_lsn, self._writer.last, self._router.take_control())
        try:
            control = settle_tables(wanted, self._admin, self._writer, read_control(wanted))
        except NothingChanged as refused:
            self._settings = before
            self._commands.tables_refused(refused.error)
            return
        now = captured_tables(control)
        for id in self._records.keys() - now.keys():
            loads.drop(id)
            self._router.drop(id)
            del self._records[id]
        self._records.update({id: now[id] for id in now.keys() - self._records.keys()})
        self._watch.use(wanted)
        loads.join(control, wanted.keys, try_again=asked is not None)

    def _run_stream(
        self,
        producer: TransactionalProducer,
        control: ControlState,
        position: LogPosition,
        stop_before: int | None,
    ) -> bool:
        """Stream over one connection; whether ``stop_before`` was reached."""
        settings = self._settings
        # As control has them: what an aborted part changed is undone.
        self._records = captured_tables(control)
        with ReplicationClient(settings.conninfo) as client:
            check_server(position, client.identify_system())
            replay = stop_before is not None
            start = self._check_source(position)
            hooks = StreamHooks(
                self._stop,
                self._tick,
                self._frontier_stable,
                self._border_wanted,
                self._at_border,
                lambda: _LOADING_READ_S if self._loading else LONGEST_READ_S,
            )
            stream = Stream(client, start, hooks)
            side = SideConnection(settings.conninfo, settings.publication, stream.reread_waits)

            router = functools.partial(
                Router,
                epoch=position.position.epoch,
                send=producer.send,
                send_all=producer.send_all,
                source=side,
            )
            loads = None
            try:
                tables = routed_tables(control, self._writer.position)
                self._router = router(settings, tables=tables)
                catalog = LoadCatalog(side.connected, lambda: self._settings)

                def hurry() -> None:
                    catalog.flush_wal()
                    stream.ask_position()

                self._watch = SourceWatch(
                    settings,
                    self._records,
                    self._router,
                    side,
                    self._loading_schemas,
                    self._writer,
                    hurry,
                )
                if not replay:
                    # A replay goes up to a change after which it need not hold any more.
                    self._watch.look()
                loads = Loads(
                    settings,
                    LoadPorts(
                        admin=self._admin,
                        reader=self._reader,
                        copier=self._make_copier(copy_settings(settings, position.position.epoch)),
                        catalog=catalog,
                        router=self._router,
                        writer=self._writer,
                        replay_router=lambda table: router(
                            self._settings, tables={table.schema.id: table}
                        ),
                        filenodes=side.filenodes,
                        widths=side.widths,
                        publish=lambda tables: publish_again(self._settings, tables),
                        keep_alive=stream.keep_alive,
                        ask_position=stream.ask_position,
                        progress=self._reports.load,
                    ),
                    control,
                    self._records,
                )
                loads.check_topics()
                loads.begin_anew(self._watch.gaps)
                self._loads = None if replay else loads
                client.start_replication(settings.slot, start, settings.publication)
                log.info(
                    "streaming",
                    position=str(self._writer.position),
                    confirmed=f"{start:X}",
                    tables=len(tables),
                )
                self._channel.state("loading" if self._loading else "streaming")
                self._stream = stream
                stream.run(self._router, self._writer, stop_before)
            finally:
                self._stream = None
                if loads is not None:
                    loads.close()
                self._loads = None
                side.close()
            return stream.reached

    def _check_source(self, position: LogPosition) -> int:
        """Check the slot; returns its confirmed_flush."""
        settings = self._settings
        with connect_sql(settings.conninfo) as connection:
            slot = free_slot(connection, settings, settings.slot, self._check_stop)
        current = dataclasses.replace(
            position, position=self._writer.position, end_lsn=self._writer.end_lsn
        )
        return check_slot(settings, current, slot)

    # --- a change that cannot be captured ---

    def _stop_at(
        self, producer: TransactionalProducer, position: LogPosition, at: StoppedAt
    ) -> bool:
        """Complete the log up to before the transaction, and record what is Errored from there on.

        Returns:
            Whether the source goes on without a table; if not, a stop was asked for meanwhile.

        Raises:
            SourceStopped: It does not go on.
        """
        log.error("something cannot be captured", **at.stopped.to_json())
        self._writer.abort()
        while at.lsn is not None:
            # Schema versions and routes as of the frontier, not as the aborted part left them.
            control = read_control(self._settings)
            try:
                if not self._run_stream(producer, control, position, stop_before=at.lsn):
                    return False
                break
            except StoppedAt as earlier:
                at = earlier
                self._writer.abort()
        self._set_aside(at.stopped)
        return True

    def _set_aside(self, stopped: SourceStopped) -> None:
        """Record which tables are Errored from here on.

        Raises:
            SourceStopped: It is all of them, so that the source does not go on.
        """
        good = self._writer.position
        errored = errored_records(self._settings, self._records, stopped, good)
        ended = ended_loads(errored, read_control(self._settings))
        self._writer.advance(
            self._writer.end_lsn,
            self._writer.last,
            [*(record.to_key_value() for record in errored), *ended],
        )
        if stopped.table is None:
            self._writer.write_offset()
            raise stopped
        log.error("set aside", table=stopped.table, waits_for=[r.aside for r in errored])

    # --- beside the loop ---

    def _frontier_stable(self) -> int:
        return self._reader.bounds(self._settings.frontier_topic).last_stable

    def _kafka_waits(self) -> None:
        if self._stream is not None:
            self._stream.kafka_waits()

    @property
    def _loading(self) -> bool:
        return self._loads is not None and self._loads.active

    def _loading_schemas(self) -> dict[TableId, TableSchema]:
        return self._loads.schemas if self._loads is not None else {}

    def _border_wanted(self) -> bool:
        loads = self._loads
        return loads is not None and (
            loads.border_wanted or self._commands.tables_wanted or self._watch.tables_changed
        )

    def _at_border(self) -> None:
        if self._loads is not None:
            loading = self._loads.active
            self._change_tables(self._loads)
            self._loads.at_border()
            self._commands.tables_changed(self._records, self._loads)
            # It is here that the last load ends.
            if loading and not self._loads.active:
                self._channel.state("streaming")

    def _tick(self) -> None:
        if self._loads is not None:
            self._loads.tick()
            # Not in a replay, as at its start.
            self._watch.tick()
            self._loads.begin_anew(self._watch.gaps)
        if self._reports.due:
            self._answer_commands()
            if self._stream is not None:
                self._reports.report(
                    self._stream,
                    self._router,
                    self._writer,
                    self._records,
                    self._loads.loads if self._loads is not None else (),
                )

    def _answer_commands(self) -> None:
        self._commands.answer(self._loads, self._records)
