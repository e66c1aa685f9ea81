"""Capture inside the test's own process: one thread, real servers, a log of its own."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Any

import psycopg

from cdc.control import ControlState
from cdc.daemon.channel import ChildChannel
from cdc.envelope import LogRecord
from cdc.errors import CdcError
from cdc.load import ChunkDone, ChunkPlan, Measure
from cdc.names import TableId, default_publication, default_slot
from cdc.position import Position, parse_lsn
from cdc.states import READY, REMOVED
from connectors.postgres.capture import Capture
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.stopping import StopRequest
from tests.support.compare import assert_same, log_rows, source_rows
from tests.support.readers import Readers

PROJECT, SOURCE = "test", "shop"


class EmptyCopier:
    """Copies tables without rows: every chunk is done at once."""

    def __init__(self, settings):
        self.begun = []
        self._events = []

    def measure(self, schemas):
        return [Measure(ChunkPlan.whole(1, 1), 0, 0) for _ in schemas]

    def begin(self, task):
        self.begun.append(task)
        self._events += [ChunkDone(task.key, chunk, 0, {}) for chunk in task.left]

    def cancel(self, load):
        self._events = [event for event in self._events if event.load != load]

    def poll(self, seconds=0.0):
        events, self._events = self._events, []
        return events

    @property
    def busy(self):
        return bool(self._events)

    def close(self):
        self._events = []


class Capturing:
    """A database, its tables, and the log that capture writes of them.

    Args:
        bootstrap: Kafka.
        conninfo: libpq keywords of the database.
        prefix: Of the topics.
        tables: Names in schema public.
        name: Tells several of one database apart; each needs a prefix of its own.
    """

    def __init__(
        self,
        bootstrap,
        conninfo,
        prefix,
        tables,
        *,
        partitions=1,
        make_copier=EmptyCopier,
        name="x",
    ):
        database = conninfo["dbname"]
        # Slots belong to the server, so their names must not repeat among tests.
        slot = f"{default_slot(PROJECT, name)}_{database}"
        self.conninfo = dict(conninfo)
        self.bootstrap = bootstrap
        self.readers = Readers(bootstrap, prefix)
        self.make_copier = make_copier
        self.channel = ChildChannel(None)
        self.settings = CaptureSettings(
            project=f"{PROJECT}.{prefix}",
            source=SOURCE,
            database=database,
            conninfo=self.conninfo,
            bootstrap_servers=bootstrap,
            log_options={},
            topic_prefix=prefix,
            partitions=partitions,
            replication_factor=1,
            history_ms=7 * 24 * 3600 * 1000,
            slot=slot,
            publication=default_publication(PROJECT, name),
            manage_publication=True,
            tables=tuple(TableId("public", name) for name in tables),
            workers=1,
            version="0",
        )
        self._thread = None
        self._stop = StopRequest()
        self._error: BaseException | None = None

    # --- the process ---

    def start(self, settings=None):
        self._stop, self._error = StopRequest(), None
        capture = Capture(settings or self.settings, self.make_copier, self.channel, self._stop)

        def run():
            try:
                capture.run()
            except BaseException as error:  # noqa: BLE001 - handed to the test's thread
                self._error = error

        self._thread = threading.Thread(target=run, name="capture", daemon=True)
        self._thread.start()

    def stop(self):
        """Ask for a stop and wait; raises what capture raised."""
        self._stop.request()
        return self.wait(20)

    def wait(self, timeout=20):
        """Wait until capture ends by itself; raises what it raised."""
        if self._thread is None:
            return
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "capture does not end"
        self._thread = None
        if self._error is not None:
            raise self._error

    def ends_with(self, timeout=20) -> CdcError:
        """The error that capture ends with by itself."""
        try:
            self.wait(timeout)
        except CdcError as error:
            return error
        raise AssertionError("capture ended without an error")

    @contextmanager
    def running(self, settings=None):
        """Capture runs inside the block, and must not end before it does."""
        self.start(settings)
        try:
            yield self
        except BaseException:
            self._stop.request()
            if self._thread is not None:
                self._thread.join(20)
                self._thread = None
            if isinstance(self._error, CdcError):
                raise AssertionError(f"capture ended: {self._error}") from self._error
            raise
        if self._thread is not None:
            self.stop()

    # --- the source ---

    @contextmanager
    def connect(self, autocommit=True):
        with psycopg.connect(**self.conninfo, autocommit=autocommit) as connection:
            yield connection

    def execute(self, *statements):
        """Each statement in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def transaction(self, *statements):
        """All in one transaction; returns its id."""
        with self.connect(autocommit=False) as connection:
            for statement in statements:
                connection.execute(statement)
            (xid,) = connection.execute("select pg_current_xact_id()::text").fetchone()
            connection.commit()
        return int(xid)

    def rows(self, query):
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def wal_end(self):
        return parse_lsn(self.rows("select pg_current_wal_lsn()::text")[0][0])

    def confirmed(self):
        query = "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = "
        rows = self.rows(query + f"'{self.settings.slot}'")
        return parse_lsn(rows[0][0]) if rows else None

    def knows_files(self):
        """The files of all tables are those that control tells."""
        found = dict(self.rows("select relname::text, relfilenode::bigint from pg_class"))
        tables = self.control().tables
        return all(found[id.table] == record.filenode for id, record in tables.items())

    # --- the log ---

    def control(self, up_to=None) -> ControlState:
        with self.readers.open() as reader:
            return reader.control_state(SOURCE, up_to)

    def frontier(self):
        with self.readers.open() as reader:
            try:
                return reader.frontier(SOURCE)
            except CdcError as error:
                # Also while the topic is being made: not leader yet.
                if error.code not in ("topic_missing", "kafka_error"):
                    raise
                return None

    def frontiers(self):
        with self.readers.open() as reader:
            return [record for _, record in reader.frontier_history(SOURCE)]

    def wait_ready(self, timeout=20):
        """Wait until the tables are Ready and their changes are streamed."""
        query = "select from pg_replication_slots where active and slot_name = "
        query += f"'{self.settings.slot}'"
        self.wait_until(lambda: self.frontier() is not None, timeout, "the first frontier")
        self.wait_until(self._all_ready, timeout, "tables that are Ready")
        self.wait_until(lambda: self.rows(query), timeout, "the stream")

    def _all_ready(self):
        tables = self.control().tables.values()
        there = [record for record in tables if record.state != REMOVED]
        return bool(there) and all(record.ready_from is not None for record in there)

    def caught_up(self, timeout=20):
        """Wait until the frontier has passed what the source holds now; returns it."""
        target = self.wal_end()

        def reached():
            view = self.frontier()
            return view is not None and view.record.end_lsn >= target

        self.wait_until(reached, timeout, "the frontier")
        return self.frontier()

    def wait_until(self, condition, timeout, what):
        deadline, pause = time.monotonic() + timeout, 0.03
        with self.readers.waiting():
            while not condition():
                if self._thread is not None and not self._thread.is_alive():
                    raise AssertionError(f"capture ended: {self._error}") from self._error
                assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
                time.sleep(pause)
                # To ask the log again and again is most of what the broker does in these tests.
                pause = min(0.2, pause * 1.5)

    def record(self, table):
        """A table's control record."""
        return self.control().tables[TableId("public", table)]

    def wait_loaded(self, table, load):
        """Wait until a table is Ready with this load, or a later one."""

        def loaded():
            record = self.record(table)
            return record.state == READY and record.load >= load

        self.wait_until(loaded, 60, f"load {load} of {table}")

    def records(self, table, frontier: Position | None = None) -> list[LogRecord]:
        """Records of a table below the frontier, by partition and offset."""
        view = self.frontier()
        bound = frontier or view.position
        found: list[LogRecord] = []
        with self.readers.open() as reader:
            # As of the frontier: a newer load may be switched in between two looks.
            control = reader.control_state(SOURCE, view.record.control_end)
            topic = control.tables[TableId("public", table)].topic
            for partition, end in sorted(view.ends[topic].items()):
                found += reader.records(topic, partition, 0, end)
        return [record for record in found if record.position < bound]

    def state(self, table):
        """Key JSON to row of what the log folds to, applying one record after the other."""
        id = TableId("public", table)
        control, view = self.control(), self.frontier()
        truncate = control.newest_truncate(id, control.tables[id].load, view.position)
        rows: dict[bytes, Any] = {}
        for record in sorted(
            self.records(table), key=lambda r: (r.position, r.op == "c", r.offset)
        ):
            if truncate is not None and record.position < truncate:
                continue
            if record.op in ("d", "tombstone"):
                rows.pop(record.key, None)
            else:
                rows[record.key] = record.after
        return rows


def assert_log_is_source(source, tables):
    """Every table's topic, folded, has the rows that Postgres has."""
    for table in tables:
        schema, rows = log_rows(
            source.bootstrap, SOURCE, TableId("public", table), source.settings.topic_prefix
        )
        assert_same(source_rows(source.conninfo, schema), rows, f"log of {table}")
