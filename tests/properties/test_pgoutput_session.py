"""The session under any course of events: feedback never regresses, nothing unheard is acked."""

from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolViolation
from connectors.postgres.messages import Begin, Commit
from connectors.postgres.session import ReplicationSession
from tests.properties.pgoutput_strategies import changes, messages
from tests.support.pgoutput_encoder import encode, keepalive, read_status, xlog_data

lsns = st.integers(0, 1000)
steps = st.one_of(
    st.tuples(st.just("keepalive"), lsns, st.booleans()),
    st.tuples(st.just("transaction"), st.integers(1, 50), st.lists(changes, max_size=3)),
    st.tuples(st.just("confirm"), lsns),
    st.tuples(st.just("wait"), st.floats(0, 30)),
)


@given(lsns, st.lists(steps, max_size=40))
def test_feedback_never_regresses_and_never_exceeds_what_was_told(start, course):
    now = 0.0
    session = ReplicationSession(start, now)
    told = heard = start
    commit_at = 1000
    last = (start, start, start)
    for kind, *arguments in course:
        asked = False
        if kind == "keepalive":
            wal_end, asked = arguments
            session.receive(keepalive(wal_end, asked))
            heard = max(heard, wal_end)
        elif kind == "transaction":
            size, body = arguments
            begin = Begin(commit_at, 0, 1)
            commit = Commit(commit_at, commit_at + size, 0)
            for message in (begin, *body, commit):
                assert session.receive(xlog_data(encode(message))) == message
            heard = commit_at = commit_at + size
        elif kind == "confirm":
            (lsn,) = arguments
            session.confirm(lsn)
            told = max(told, lsn)
        else:
            now += arguments[0]
        due = session.seconds_to_status(now) == 0.0
        data = session.feedback(now, 0)
        assert due == (data is not None)
        assert data is not None or not asked
        if data is not None:
            status = read_status(data)
            assert all(new >= old for new, old in zip(status, last, strict=True))
            assert status[1] == status[2] <= min(told, heard)
            assert status[0] >= status[1]
            last = status
        assert session.flushed == last[1]  # what could be said has been said


@given(st.lists(st.one_of(messages.map(encode), st.binary(max_size=60)), max_size=8), st.data())
def test_any_frames_are_events_or_refused(payloads, data):
    session = ReplicationSession(1, 0.0)
    for payload in payloads:
        frame = bytearray(xlog_data(payload))
        if data.draw(st.booleans()):
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        try:
            session.receive(bytes(frame))
        except ProtocolViolation:
            return
