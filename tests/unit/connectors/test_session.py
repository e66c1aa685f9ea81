"""The session: order of messages, and what is told to the server when."""

import pytest

from cdc.errors import ProtocolViolation
from connectors.postgres.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)
from connectors.postgres.session import Keepalive, ReplicationSession
from tests.support.pgoutput_encoder import encode, keepalive, read_status, xlog_data

BEGIN = Begin(200, 1_700_000_000_000_000, 745)
COMMIT = Commit(200, 300, 1_700_000_000_000_000)
CHANGES = [
    Insert(1, (b"1",)),
    Update(1, "", None, (b"1",)),
    Delete(1, "K", (b"1",)),
    Truncate((1,), False, False),
    Relation(1, "public", "t", "d", ()),
    Type(1, "public", "e"),
    Origin(5, "elsewhere"),
    LogicalMessage(True, 5, "p", b""),
]


def session(**more):
    return ReplicationSession(100, now=0.0, **more)


def feed(s, *messages):
    return [s.receive(xlog_data(encode(m))) for m in messages]


def refused(s, data):
    with pytest.raises(ProtocolViolation) as violation:
        s.receive(data)
    return violation.value


def test_a_transaction_passes_as_it_is():
    s = session()
    assert feed(s, BEGIN, *CHANGES, COMMIT) == [BEGIN, *CHANGES, COMMIT]
    assert not s.in_transaction


@pytest.mark.parametrize("change", [*CHANGES, COMMIT], ids=lambda m: type(m).__name__)
def test_a_change_outside_of_a_transaction_is_refused(change):
    violation = refused(session(), xlog_data(encode(change)))
    assert violation.code == "unexpected_message"
    assert type(change).__name__ in violation.message


def test_a_message_may_stand_outside_if_it_is_not_transactional():
    message = LogicalMessage(False, 5, "p", b"x")
    assert feed(session(), message) == [message]


def test_begin_inside_of_a_transaction_is_refused():
    s = session()
    feed(s, BEGIN)
    assert s.transaction == BEGIN
    violation = refused(s, xlog_data(encode(BEGIN)))
    assert (violation.code, violation.position) == ("unexpected_message", "0/C8")


@pytest.mark.parametrize("commit", [Commit(201, 300, 0), Commit(200, 200, 0)])
def test_a_commit_of_another_transaction_is_refused(commit):
    s = session()
    feed(s, BEGIN)
    assert refused(s, xlog_data(encode(commit))).code == "unexpected_message"


def test_transactions_come_in_commit_order():
    s = session()
    feed(s, BEGIN, COMMIT)
    # The next commit record can start exactly at the previous one's end.
    feed(s, Begin(300, 0, 746), Commit(300, 400, 0))
    assert refused(s, xlog_data(encode(Begin(399, 0, 747)))).code == "unexpected_message"


def test_a_keepalive_is_an_event_also_inside_of_a_transaction():
    s = session()
    feed(s, BEGIN)
    assert s.receive(keepalive(150, True, 946_684_800_000_007)) == Keepalive(
        150, 946_684_800_000_007, True
    )
    assert s.in_transaction


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "unknown_message"),
        (b"x" + bytes(30), "unknown_message"),
        (b"w" + bytes(24), "malformed_message"),
        (b"w" + bytes(10), "malformed_message"),
        (keepalive(1)[:-1], "malformed_message"),
        (keepalive(1) + b"\0", "malformed_message"),
        (keepalive(1)[:-1] + b"\2", "malformed_message"),
    ],
)
def test_frames_that_are_not_of_the_protocol_are_refused(data, code):
    assert refused(session(), data).code == code


def test_nothing_is_confirmed_unless_told():
    s = session()
    feed(s, BEGIN, COMMIT)
    s.receive(keepalive(900))
    assert read_status(s.feedback(1.0, 0, force=True)) == (900, 100, 100)
    s.confirm(300)
    assert read_status(s.feedback(1.0, 0)) == (900, 300, 300)


def test_a_status_is_due_when_the_interval_has_passed():
    s = session(status_interval_s=10)
    assert s.feedback(9.5, 0) is None
    assert s.seconds_to_status(9.5) == 0.5
    assert s.feedback(10.0, 0) is not None
    assert s.feedback(10.0, 0) is None
    assert s.seconds_to_status(10.0) == 10.0


def test_a_status_is_due_at_once_when_asked_for():
    s = session()
    s.receive(keepalive(150, reply=False))
    assert s.feedback(0.0, 0) is None
    s.receive(keepalive(150, reply=True))
    assert s.seconds_to_status(0.0) == 0.0
    assert s.feedback(0.0, 0) is not None
    assert s.feedback(0.0, 0) is None


def test_a_status_is_due_at_once_when_more_is_confirmed():
    s = session()
    s.receive(keepalive(150))
    s.confirm(150)
    assert read_status(s.feedback(0.0, 0)) == (150, 150, 150)
    s.confirm(120)  # lower than before: ignored
    assert s.feedback(0.0, 0) is None


def test_what_the_server_has_not_reported_is_held_back():
    s = session()
    s.confirm(500)
    assert s.feedback(0.0, 0) is None
    s.receive(keepalive(400))
    assert read_status(s.feedback(0.0, 0)) == (400, 400, 400)
    s.receive(keepalive(600))
    assert read_status(s.feedback(0.0, 0)) == (600, 500, 500)


def test_the_clock_of_a_status_counts_from_2000():
    status = session().feedback(0.0, 946_684_800_000_005, force=True)
    assert status[25:33] == (5).to_bytes(8, "big")


def test_repr_says_where_it_stands():
    s = session()
    assert "idle" in repr(s)
    feed(s, BEGIN)
    assert "transaction 745 at 0/C8" in repr(s)
    assert "confirmed 0/64" in repr(s)
