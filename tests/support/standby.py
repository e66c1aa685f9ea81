"""Commits that are in the WAL and held back from queries, as by a synchronous standby."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import psycopg

_PROBE = "probe of synchronous commits"
_WAITING = f"""
    select application_name = '{_PROBE}' from pg_stat_activity where wait_event = 'SyncRep'
"""


class Held:
    """What the test can ask and do while commits are held.

    Args:
        conninfo: libpq keywords of the database.
    """

    def __init__(self, conninfo):
        self._conninfo = conninfo

    def waiting(self):
        """How many commits of the test wait."""
        return self._waiting().count(False)

    def release(self):
        """Let all commits go, also later ones."""
        with self._session() as session:
            session.execute("alter system reset synchronous_standby_names")
            session.execute("select pg_reload_conf()")

    def hold(self):
        """On return, commits of sessions with synchronous_commit = on wait."""
        with self._session() as session:
            session.execute("create table if not exists probe (id int)")
            session.execute("alter system set synchronous_standby_names = 'nobody'")
            session.execute("select pg_reload_conf()")
        # The server takes the setting up in its own time.
        in_force = threading.Event()
        thread = threading.Thread(target=self._commit_until, args=(in_force,), daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not self._waiting().count(True):
            assert time.monotonic() < deadline, "no commit waits"
            time.sleep(0.01)
        in_force.set()
        return thread

    def _commit_until(self, in_force):
        with psycopg.connect(
            **{**self._conninfo, "application_name": _PROBE}, autocommit=True
        ) as session:
            session.execute("set synchronous_commit = on")
            while not in_force.is_set():
                session.execute("insert into probe values (1)")

    def _waiting(self):
        with self._session() as session:
            return [ours for (ours,) in session.execute(_WAITING).fetchall()]

    def _session(self):
        return psycopg.connect(
            **self._conninfo, options="-c synchronous_commit=local", autocommit=True
        )


@contextmanager
def commits_held(conninfo):
    """Within the block, commits of sessions with synchronous_commit = on are held."""
    held = Held(conninfo)
    probe = None
    try:
        probe = held.hold()
        yield held
    finally:
        held.release()
        if probe is not None:
            probe.join(20)
