"""What needs a server of its own: lost WAL, stop, crash, and settings that are refused."""

import threading
import time
import uuid

import pytest

from cdc.errors import EnvironmentProblem, HistoryGap, SourceError
from cdc.names import TableId
from connectors.postgres.client import ReplicationClient, connect_sql
from connectors.postgres.failures import is_retryable
from connectors.postgres.preflight import preflight
from connectors.postgres.session import Keepalive
from connectors.postgres.slot import inspect_slot
from tests.support.replication import (
    PUBLICATION,
    Source,
    code_of,
    is_commit,
    receive_until,
    status,
)


@pytest.fixture
def postgres(spare_stack):
    return spare_stack.postgres


@pytest.fixture
def source(postgres):
    name = f"test_{uuid.uuid4().hex[:12]}"
    source = Source(postgres.create_database(name))
    yield source
    source.close()
    if not postgres.running():
        postgres.start()
    with connect_sql(postgres.conninfo()) as sql:
        sql.execute("ALTER SYSTEM RESET ALL")
        sql.execute("SELECT pg_reload_conf()")
    postgres.drop_database(name)


def check(sql):
    preflight(sql, tables=[TableId("public", "good")], publication="new", manage=True, slot="new")


def test_a_slot_that_lost_its_wal(source):
    for setting in ("max_slot_wal_keep_size = '1MB'", "max_wal_size = '32MB'"):
        source.sql.execute(f"ALTER SYSTEM SET {setting}".encode())
    source.sql.execute("SELECT pg_reload_conf()")
    for _ in range(4):
        source.sql.execute("SELECT pg_switch_wal()")
        source.sql.execute("CREATE TABLE public.fill AS SELECT generate_series(1, 1000)")
        source.sql.execute("DROP TABLE public.fill")
    source.sql.execute("CHECKPOINT")
    info = inspect_slot(source.sql, source.slot)
    assert info is not None and info.lost
    with ReplicationClient(source.conninfo) as client:
        error = code_of(client.start_replication, source.slot, source.start, PUBLICATION)
    assert isinstance(error, HistoryGap) and error.code == "slot_lost"


def test_a_stopping_server_waits_for_us_only_until_we_confirm(postgres, source):
    source.sql.execute("INSERT INTO public.items VALUES (1, 'a')")
    source.close()
    client, session = source.stream()
    receive_until(client, session, is_commit)
    stopping = threading.Thread(target=postgres.stop)
    stopping.start()
    with pytest.raises(SourceError) as stopped, client:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for data in client.read(0.1):
                session.receive(data)
            session.confirm(session.received)
            if (data := status(session)) is not None:
                client.send(data)
    stopping.join(30)
    assert not stopping.is_alive() and not postgres.running()
    assert is_retryable(stopped.value)
    postgres.start()
    with connect_sql(source.conninfo) as sql:
        info = inspect_slot(sql, source.slot)
        assert info is not None and info.confirmed_flush is not None
        assert info.confirmed_flush <= session.flushed


def test_a_server_that_crashes_is_a_lost_connection(postgres, source):
    client, session = source.stream()
    receive_until(client, session, lambda event: isinstance(event, Keepalive))
    postgres.kill9()
    with pytest.raises(SourceError) as lost:
        while True:
            client.read(1.0)
    assert is_retryable(lost.value)
    with pytest.raises(SourceError) as closed:
        client.send(status(session, force=True))
    assert closed.value.code == "connection_lost"
    assert client.closed
    client.close()
    client.close()
    assert "closed" in repr(client)


def test_what_is_refused_of_the_server_itself(postgres):
    with connect_sql(postgres.conninfo()) as sql:
        sql.execute("CREATE TABLE public.good (id integer PRIMARY KEY)")
        for setting in ("wal_level = replica", "max_replication_slots = 0", "max_wal_senders = 0"):
            sql.execute(f"ALTER SYSTEM SET {setting}".encode())
    postgres.restart()
    with connect_sql(postgres.conninfo()) as sql:
        with pytest.raises(EnvironmentProblem) as refused:
            check(sql)
        lines = refused.value.message.split("\n")[1:]
        assert [line.partition(" → ")[0] for line in lines] == [
            "  server: wal_level is replica, not logical",
            "  server: all 0 WAL senders are in use",
            "  server: all 0 replication slots are in use",
        ]
        assert "ALTER SYSTEM SET wal_level = 'logical'" in lines[0]
        sql.execute("ALTER SYSTEM RESET ALL")
    postgres.restart()
    with connect_sql(postgres.conninfo()) as sql:
        check(sql)
