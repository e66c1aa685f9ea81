"""A pipeline with a table that takes its time to load, in many small chunks, while it changes."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

import psycopg

from cdc.names import TableId
from cdc.states import COPYING, INTENDED
from tests.support.pipeline import Pipeline

BIG = TableId("public", "big")
#: Of all loads together, so that there is a load for as many seconds as a test needs.
ROWS_PER_SECOND = 2000
_MODULE = "tests.support.small_chunks"


def create_big(conninfo, rows, *, partitioned=False):
    """A table of rows of about 130 bytes, a chunk of which has about 450."""
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        by = " partition by range (id)" if partitioned else ""
        connection.execute(f"create table big (id int primary key, n int, note text){by}")
        if partitioned:
            third = rows // 3
            connection.execute(
                f"create table a partition of big for values from (minvalue) to ({third});"
                f"create table b partition of big for values from ({third}) to ({2 * third})"
                " partition by hash (id);"
                "create table b0 partition of b for values with (modulus 2, remainder 0);"
                "create table b1 partition of b for values with (modulus 2, remainder 1);"
                f"create table c partition of big for values from ({2 * third}) to (maxvalue)"
            )
        connection.execute(
            f"insert into big select i, 0, repeat('n', 90) from generate_series(1, {rows}) i"
        )


class Loading(Pipeline):
    """A pipeline whose capture copies chunks of a few blocks, at a limited rate."""

    def __init__(self, *arguments, rows_per_second=ROWS_PER_SECOND, **options):
        snapshot = f"{{workers: 2, rows_per_second: {rows_per_second}}}"
        super().__init__(*arguments, snapshot=snapshot, **options)

    def start_capture(self, env=None, module=_MODULE):
        return super().start_capture(env, module)

    def revive(self):
        """What the daemon does: start capture again when it has ended."""
        if not self.running("capture"):
            self.start_capture()

    def load(self):
        """The newest load of ``big`` as control has it; None: there is none."""
        loads = [record for (id, _), record in self.control().loads.items() if id == BIG]
        return max(loads, key=lambda record: record.load, default=None)

    def wait_chunks(self, more_than, revive=True):
        """Wait until more than so many chunks of ``big`` are marked; returns its load.

        The load must not be over before.
        """
        found: list[Any] = []

        def marked():
            if revive:
                self.revive()
            load = self.load()
            found[:] = [load]
            if load is None or load.state == INTENDED:
                return False
            assert load.state == COPYING, f"too late: {load.state}"
            return chunks_done(load) > more_than

        self.wait_until(marked, 60, f"more than {more_than} chunks")
        return found[0]

    def wait_ready(self, timeout=120):
        """Wait until all is Ready and captured, starting capture again whenever it has ended."""
        target = self.source_lsn()

        def captured():
            self.revive()
            view = self.frontier()
            tables = self.control().tables.values()
            ready = bool(tables) and all(r.ready_from is not None for r in tables)
            return ready and view is not None and view.record.end_lsn >= target

        self.wait_until(captured, timeout, "all tables to be Ready")


def chunks_done(load):
    """How many chunks of a load are marked."""
    return sum(last - first + 1 for first, last in load.done)


class Churn:
    """Changes to ``big`` all over it, in the background: moved, deleted, inserted, key changed.

    Args:
        conninfo: Of the database.
        rows: That it began with.
        pause: Seconds between two transactions.
    """

    def __init__(self, conninfo, rows, *, seed=0, pause=0.01):
        self.committed = 0
        self._conninfo = conninfo
        self._rows = rows
        self._rng = random.Random(f"churn {seed}")
        self._pause = pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a writer hangs"

    def _run(self):
        while not self._stop.is_set():
            # A server that was killed is back soon: an application would go on too.
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(**self._conninfo) as connection,
            ):
                while not self._stop.wait(self._pause):
                    self._change(connection)
                    connection.commit()
                    self.committed += 1
            time.sleep(0.05)

    def _change(self, connection):
        rng, some = self._rng, self._rng.randrange(1, self._rows)
        match rng.randrange(5):
            case 0:
                # Longer, so that it moves.
                connection.execute(
                    "update big set n = n + 1, note = note || 'm' where id between %s and %s",
                    (some, some + 20),
                )
            case 1:
                connection.execute("delete from big where id between %s and %s", (some, some + 3))
            case 2:
                connection.execute(
                    "insert into big select i, -1, 'again' from generate_series(%s::int, %s) i"
                    " on conflict do nothing",
                    (some, some + 5),
                )
            case 3:
                connection.execute(
                    "update big set id = %s where id = %s"
                    # It may have moved there before, and another have come after it.
                    " and not exists (select from big b where b.id = %s)",
                    (moved := some + 10 * self._rows, some, moved),
                )
            case 4:
                connection.execute("update big set n = n + 1 where id = %s", (some,))
