"""The server's errors in our words."""

import psycopg
import pytest

from cdc.errors import EnvironmentProblem, HistoryGap, SourceError
from connectors.postgres.failures import (
    STARTING,
    STREAMING,
    connect_failed,
    is_retryable,
    mapped_errors,
    server_error,
)


@pytest.mark.parametrize(
    ("state", "message", "slot", "kind", "code", "retryable"),
    [
        ("42704", 'replication slot "s" does not exist', "s", HistoryGap, "slot_missing", False),
        (
            "55006",
            'replication slot "s7" is active for PID 42',
            "s7",
            SourceError,
            "slot_active",
            True,
        ),
        (
            "55000",
            'can no longer get changes from replication slot "s"',
            "s",
            HistoryGap,
            "slot_lost",
            False,
        ),
        (
            "58P01",
            "requested WAL segment 00 has already been removed",
            "s",
            HistoryGap,
            "slot_lost",
            False,
        ),
        ("42710", 'replication slot "s" already exists', "s", SourceError, "slot_exists", False),
        (
            "53400",
            "all replication slots are in use",
            "s",
            EnvironmentProblem,
            "no_free_slot",
            False,
        ),
        (
            "42501",
            "permission denied for table t",
            "",
            EnvironmentProblem,
            "no_permission",
            False,
        ),
        ("57P01", "terminating connection", "s", SourceError, "server_stopping", True),
        ("57P03", "the database system is starting up", "", SourceError, "server_starting", True),
        ("08006", "connection failure", "", SourceError, "connection_lost", True),
        ("XX000", "something else", "s", SourceError, "source_error", False),
        (None, "no state", "s", SourceError, "source_error", False),
    ],
)
def test_server_errors(state, message, slot, kind, code, retryable):
    error = server_error(state, message, "start replication", slot)
    assert (type(error), error.code, is_retryable(error)) == (kind, code, retryable)
    if code == "slot_active":
        assert "process 42" in error.message


def test_a_missing_object_is_the_slot_at_the_start_and_the_publication_later():
    slot = "a_publication"
    start = server_error("42704", f'replication slot "{slot}" does not exist', STARTING, slot)
    assert start.code == "slot_missing"
    stream = server_error("42704", f'publication "{slot}" does not exist', STREAMING, slot)
    assert stream.code == "publication_missing"
    for doing in (STARTING, STREAMING):
        assert server_error("55000", "can no longer get changes", doing, slot).code == "slot_lost"


@pytest.mark.parametrize(
    ("message", "code", "retryable"),
    [
        ("connection to server failed: Connection refused", "server_unreachable", True),
        ("FATAL:  the database system is starting up", "server_starting", True),
        (
            "FATAL:  the database system is not yet accepting connections",
            "server_starting",
            True,
        ),
        ("FATAL:  the database system is shutting down", "server_stopping", True),
        ("FATAL:  sorry, too many clients already", "too_many_connections", True),
        ("FATAL:  number of requested standby connections exceeds max_wal_senders (currently 2)",
         "too_many_connections", True),
        ('FATAL:  database "x" does not exist', "database_missing", False),
        ('FATAL:  password authentication failed for user "x"', "authentication_failed", False),
        ("FATAL:  no pg_hba.conf entry for replication connection", "authentication_failed", False),
    ],
)  # fmt: skip
def test_failed_connections(message, code, retryable):
    error = connect_failed(message)
    assert (error.code, is_retryable(error)) == (code, retryable)


def test_errors_of_psycopg_are_mapped():
    with pytest.raises(SourceError) as lost, mapped_errors("read"):
        raise psycopg.OperationalError("consuming input failed:\nserver closed the connection")
    assert lost.value.code == "connection_lost"
    assert "\n" not in lost.value.message
    with pytest.raises(SourceError) as other, mapped_errors("read"):
        raise psycopg.ProgrammingError("odd")
    assert (other.value.code, other.value.message) == ("source_error", "cannot read: odd")
