"""Bytes that are not the protocol: they stop the source, for they would come again."""

import pytest

from cdc.daemon.capture_child import REFUSED, RETRYABLE, SOURCE_STOPPED, exit_code
from cdc.errors import ProtocolViolation, SourceStopped
from connectors.postgres.failures import connection_lost, undecodable
from connectors.postgres.messages import Begin, Commit, Insert
from connectors.postgres.stopping import StoppedAt
from tests.unit.connectors.test_capture_router import RELID
from tests.unit.connectors.test_capture_stream import RELATION, Run, transaction, wire

GARBAGE = b"w" + bytes(24) + b"?"


def stopped_at(*batches, **options):
    this = Run(*batches, **options)
    with pytest.raises(StoppedAt) as caught:
        this()
    assert isinstance(caught.value.stopped, SourceStopped)
    return this, caught.value


def opened(start, *ids):
    return wire(Begin(start, 1, 8), RELATION, *(Insert(RELID, (b"%d" % i, b"x")) for i in ids))


def test_inside_of_a_transaction_it_names_the_transaction():
    this, at = stopped_at(transaction(1000, 1040, 1) + opened(1040, 2) + [GARBAGE])
    assert at.lsn == 1040
    stopped = at.stopped
    assert (stopped.code, stopped.position) == ("unknown_message", "0/410")
    assert stopped.remedy is not None
    assert "cdc destroy" in stopped.remedy
    # The replay that follows commits what is whole.
    assert this.producer.committed == []
    assert [lsn for what, lsn in this.journal if what == "flushed"] == []
    replay = Run(transaction(1000, 1040, 1) + opened(1040, 2) + [GARBAGE], stop_before=at.lsn)()
    assert replay.stream.reached
    assert replay.producer.rows() == [1]
    assert replay.producer.frontier_lsn() == 1040


def test_outside_of_a_transaction_everything_before_is_committed():
    this, at = stopped_at([*transaction(1000, 1040, 1), GARBAGE])
    assert at.lsn is None
    assert at.stopped.position == "0/410"
    assert this.producer.rows() == [1]
    assert this.producer.frontier_lsn() == 1040
    assert this.producer.open is None


def test_in_a_transaction_that_the_log_holds_already():
    this, at = stopped_at([*opened(900, 1), GARBAGE], start=900)
    assert at.lsn == 900
    assert this.producer.committed == []


def test_a_row_of_other_width_is_one_too():
    _, at = stopped_at(wire(Begin(1000, 1, 8), RELATION, Insert(RELID, (b"1",))))
    assert at.lsn == 1000
    assert at.stopped.position is not None
    assert "more or fewer columns" in at.stopped.message


def test_a_commit_of_another_transaction_is_one_too():
    _, at = stopped_at(wire(Begin(1000, 1, 8), Commit(1010, 1040, 1)))
    assert at.lsn == 1000
    assert at.stopped.code == "unexpected_message"


def test_what_the_daemon_is_told():
    violation = ProtocolViolation("malformed_message", "cut short")
    assert exit_code(undecodable(violation, 1, "load anew")) == SOURCE_STOPPED
    # While it loads there is no table to call Errored.
    assert exit_code(violation) == REFUSED
    assert exit_code(connection_lost("in the middle of a message")) == RETRYABLE
