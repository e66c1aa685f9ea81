"""A source for tests of the replication client: a table, its publication, a slot."""

import time

import pytest

from cdc.errors import CdcError
from cdc.names import TableId
from connectors.postgres.client import ReplicationClient, connect_sql
from connectors.postgres.messages import Commit
from connectors.postgres.publication import create_publication
from connectors.postgres.session import ReplicationSession
from connectors.postgres.slot import inspect_slot

PUBLICATION = "shop"


class Source:
    """A table, its publication, and a slot; ``stream`` opens a client and a session on it."""

    def __init__(self, conninfo):
        self.conninfo = conninfo
        self.slot = f"s_{conninfo['dbname']}"
        self.sql = connect_sql(conninfo)
        self.sql.execute("CREATE TABLE public.items (id integer PRIMARY KEY, v text)")
        create_publication(self.sql, PUBLICATION, [TableId("public", "items")])
        with ReplicationClient(conninfo) as client:
            self.start = client.create_slot(self.slot, False).consistent_point

    def close(self):
        self.sql.close()

    def stream(self):
        client = ReplicationClient(self.conninfo)
        client.start_replication(self.slot, self.start, PUBLICATION)
        return client, ReplicationSession(self.start, time.monotonic())

    def confirmed(self):
        info = inspect_slot(self.sql, self.slot)
        assert info is not None
        return info.confirmed_flush


def receive_until(client, session, wanted, within_s=20.0):
    """Events up to the first that ``wanted`` accepts."""
    events = []
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for data in client.read(0.2):
            events.append(session.receive(data))
            if wanted(events[-1]):
                return events
    raise AssertionError(f"not seen in time; {len(events)} events")


def is_commit(event):
    return isinstance(event, Commit)


def status(session, force=False):
    return session.feedback(time.monotonic(), time.time_ns() // 1000, force=force)


def code_of(call, *arguments):
    with pytest.raises(CdcError) as raised:
        call(*arguments)
    return raised.value
