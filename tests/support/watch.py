"""A watcher of the promise that a slot is confirmed only after Kafka has acknowledged."""

from __future__ import annotations

import threading

import psycopg

from cdc.errors import CdcError
from cdc.log.reader import LogReader
from cdc.position import format_lsn, parse_lsn


class ConfirmedWatch:
    """Polls confirmed_flush, then the newest committed frontier, all the time."""

    def __init__(self, pipeline, slot):
        self._pipeline = pipeline
        self._slot = slot
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples = 0
        self.broken = None

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join(60)

    def assert_held(self):
        assert self.samples > 10, "the watcher saw too little"
        assert self.broken is None, self.broken

    def _run(self):
        while not self._stop.is_set():
            try:
                self._watch_one_connection()
            except (psycopg.Error, CdcError):
                # A server was killed: look again when it is back.
                self._stop.wait(0.1)

    def _watch_one_connection(self):
        pipeline = self._pipeline
        with (
            psycopg.connect(**pipeline.conninfo, autocommit=True) as connection,
            LogReader(pipeline.bootstrap, topic_prefix=pipeline.prefix) as reader,
        ):
            while not self._stop.wait(0.05):
                row = connection.execute(
                    "select confirmed_flush_lsn::text from pg_replication_slots"
                    " where slot_name = %s",
                    (self._slot,),
                ).fetchone()
                if row is None:
                    continue
                confirmed = parse_lsn(row[0])
                view = reader.frontier(pipeline.source)
                if view is None:
                    continue
                self.samples += 1
                if confirmed > view.record.end_lsn:
                    self.broken = (
                        f"confirmed {format_lsn(confirmed)} is beyond the frontier "
                        f"{format_lsn(view.record.end_lsn)}"
                    )
