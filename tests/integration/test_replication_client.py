"""The replication client against a real server: streams, slots, and what errors become."""

import time

import pytest

from cdc.errors import EnvironmentProblem, HistoryGap
from connectors.postgres.catalog import current_wal_lsn
from connectors.postgres.client import ReplicationClient, connect_sql
from connectors.postgres.failures import is_retryable
from connectors.postgres.messages import Begin, Commit, Insert
from connectors.postgres.publication import drop_publication
from connectors.postgres.session import Keepalive, ReplicationSession
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
def source(database):
    source = Source(database)
    yield source
    source.close()


def test_only_what_was_confirmed_does_not_come_again(source):
    source.sql.execute("INSERT INTO items VALUES (1, 'a')".replace("items", "public.items"))
    client, session = source.stream()
    with client:
        first = receive_until(client, session, is_commit)
    assert source.confirmed() == source.start
    client, session = source.stream()
    with client:
        again = receive_until(client, session, is_commit)
        end = again[-1].end_lsn
        session.confirm(end)
        client.send(status(session))
    # close() has waited for the server, so the status has arrived.
    assert source.confirmed() == end

    def transaction(events):
        return [event for event in events if not isinstance(event, Keepalive)]

    assert transaction(first) == transaction(again)
    source.sql.execute("INSERT INTO public.items VALUES (2, 'b')")
    client, session = source.stream()  # asks for the old start; the server moves it up
    with client:
        next_one = transaction(receive_until(client, session, is_commit))
    assert [e.new for e in next_one if isinstance(e, Insert)] == [(b"2", b"b")]


def test_a_large_transaction_passes_in_bounded_batches(source):
    source.sql.execute(
        "INSERT INTO public.items SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n"
    )
    client, session = source.stream()
    limit = 256 * 1024
    with client:
        rows = 0
        commit = None
        while commit is None:
            batch = client.read(5.0, limit)
            assert batch
            assert sum(map(len, batch)) < limit + 2000
            for data in batch:
                event = session.receive(data)
                rows += isinstance(event, Insert)
                if isinstance(event, Commit):
                    commit = event
    assert rows == 20000


def test_read_waits_no_longer_than_asked(source):
    client, session = source.stream()
    with client:
        receive_until(client, session, lambda event: isinstance(event, Keepalive))
        for _ in range(5):  # a quiet server may still send a keepalive or two
            started = time.monotonic()
            if client.read(0.3) == []:
                break
        assert 0.25 < time.monotonic() - started < 2


def test_a_quiet_publication_moves_by_keepalives_alone(source):
    source.sql.execute("CREATE TABLE public.other (id integer)")
    client, session = source.stream()
    with client:
        source.sql.execute("INSERT INTO public.other SELECT generate_series(1, 1000)")
        end = current_wal_lsn(source.sql)
        # WAL beyond it, so that a keepalive reaches it wherever in a page it is.
        source.sql.execute("SELECT pg_logical_emit_message(true, 'test', 'more')")
        events = receive_until(
            client, session, lambda e: isinstance(e, Keepalive) and e.wal_end >= end
        )
        assert not any(isinstance(event, Begin) for event in events)
        session.confirm(session.received)
        client.send(status(session))
        assert session.flushed >= end
    assert source.confirmed() == session.flushed


def test_the_exported_snapshot_is_of_the_consistent_point(source):
    source.sql.execute("INSERT INTO public.items VALUES (1, 'before')")
    with ReplicationClient(source.conninfo) as client:
        created = client.create_slot(f"{source.slot}_2", True)
        source.sql.execute("INSERT INTO public.items VALUES (2, 'after')")
        with connect_sql(source.conninfo) as other:
            other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            other.execute(f"SET TRANSACTION SNAPSHOT '{created.snapshot}'".encode())
            assert other.execute("SELECT id FROM public.items").fetchall() == [(1,)]
            other.execute("COMMIT")
        client.start_replication(f"{source.slot}_2", created.consistent_point, PUBLICATION)
        session = ReplicationSession(created.consistent_point, time.monotonic())
        events = receive_until(client, session, is_commit)
        assert [e.new for e in events if isinstance(e, Insert)] == [(b"2", b"after")]


def test_creating_a_slot_waits_for_open_transactions_and_tells(source):
    waited = []

    class StopAskedError(Exception):
        pass

    def on_wait(seconds):
        waited.append(seconds)
        if len(waited) == 2:
            raise StopAskedError

    with source.sql.transaction(), ReplicationClient(source.conninfo) as client:
        source.sql.execute("INSERT INTO public.items VALUES (1, 'open')")
        with pytest.raises(StopAskedError):
            client.create_slot("half_made", True, on_wait=on_wait)
    assert waited[0] > 0.5
    deadline = time.monotonic() + 10
    while inspect_slot(source.sql, "half_made") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_errors_of_slots_are_told_apart(source):
    client, _ = source.stream()
    with client, ReplicationClient(source.conninfo) as other:
        info = inspect_slot(source.sql, source.slot)
        assert info is not None and info.active
        error = code_of(other.start_replication, source.slot, 0, PUBLICATION)
        assert error.code == "slot_active" and is_retryable(error)
        assert f"process {info.active_pid}" in error.message
        assert code_of(other.drop_slot, source.slot).code == "slot_active"
        assert code_of(other.create_slot, source.slot, False).code == "slot_exists"
        gone = code_of(other.start_replication, "nowhere", 0, PUBLICATION)
        assert isinstance(gone, HistoryGap) and gone.code == "slot_missing"
        assert not is_retryable(gone)
        assert code_of(other.drop_slot, "nowhere").code == "slot_missing"
        # The connection survives all of that.
        assert other.identify_system().database == source.conninfo["dbname"]


def test_a_publication_that_is_gone_stops_the_stream(source):
    drop_publication(source.sql, PUBLICATION)
    source.sql.execute("INSERT INTO public.items VALUES (1, 'a')")
    client, session = source.stream()
    with client, pytest.raises(HistoryGap) as gap:
        receive_until(client, session, is_commit)
    assert gap.value.code == "publication_missing"


def test_the_reason_of_the_end_is_told_again(source):
    drop_publication(source.sql, PUBLICATION)
    source.sql.execute("INSERT INTO public.items VALUES (1, 'a')")
    client, session = source.stream()
    with client:
        for call in (lambda: receive_until(client, session, is_commit), lambda: client.read(0)):
            assert code_of(call).code == "publication_missing"
        assert code_of(client.send, status(session, force=True)).code == "publication_missing"


def test_errors_of_connecting_are_told_apart(database):
    def error(**changed):
        with pytest.raises(EnvironmentProblem) as raised:
            ReplicationClient({**database, **changed})
        with pytest.raises(EnvironmentProblem) as by_sql:
            connect_sql({**database, **changed})
        assert by_sql.value.code == raised.value.code
        return raised.value

    assert error(password="not-the-password").code == "authentication_failed"
    assert "not-the-password" not in str(error(password="not-the-password"))
    assert error(user="nobody_of_that_name").code == "authentication_failed"
    assert error(dbname="nowhere").code == "database_missing"
    unreachable = error(host="127.0.0.1", port=1)
    assert unreachable.code == "server_unreachable" and is_retryable(unreachable)


def test_a_role_without_replication_may_not_stream(source):
    name = f"r_{source.conninfo['dbname']}"
    source.sql.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'".encode())
    try:
        with pytest.raises(EnvironmentProblem):
            ReplicationClient({**source.conninfo, "user": name, "password": "x"})
    finally:
        source.sql.execute(f"DROP ROLE {name}".encode())
