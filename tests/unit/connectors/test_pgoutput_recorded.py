"""The decoder on byte streams of a real server (see tests/support/record_pgoutput.py)."""

import json
from pathlib import Path

import pytest

from cdc.errors import ProtocolViolation
from cdc.unsent import UNSENT
from connectors.postgres.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)
from connectors.postgres.pgoutput import decode
from connectors.postgres.session import Keepalive, ReplicationSession
from tests.support.pgoutput_encoder import encode

FOLDER = Path(__file__).parents[2] / "cases" / "wire" / "pgoutput"
NAMES = sorted(path.name.removesuffix(".stream.json") for path in FOLDER.glob("*.stream.json"))
HEADER = 25  # bytes of an XLogData message before its payload


def recording(name):
    stream = json.loads((FOLDER / f"{name}.stream.json").read_text())
    expected = json.loads((FOLDER / f"{name}.expected.json").read_text())
    return [bytes.fromhex(data) for data in stream["copydata"]], stream, expected


def payloads(name):
    return [data[HEADER:] for data in recording(name)[0] if data[:1] == b"w"]


def row(values):
    if values is None:
        return None
    return [{"unsent": True} if v is UNSENT else v if v is None else v.decode() for v in values]


def told(message: Message, tables: dict[int, str], types: dict[int, str]) -> list[object]:
    """The message in the words of the expectation."""
    match message:
        case Begin(xid=xid):
            return ["begin", xid]
        case Commit():
            return ["commit"]
        case Relation(relid, namespace, name, identity, columns):
            assert tables[relid] == name
            listed = [[c.name, types[c.type_oid], c.typmod, c.in_key] for c in columns]
            return ["relation", namespace, name, identity, listed]
        case Type(type_oid, namespace, name):
            assert types[type_oid] == f"{namespace}.{name}"
            return ["type", namespace, name]
        case Insert(relid, new):
            return ["insert", tables[relid], row(new)]
        case Update(relid, kind, old, new):
            return ["update", tables[relid], kind, row(old), row(new)]
        case Delete(relid, kind, old):
            return ["delete", tables[relid], kind, row(old)]
        case Truncate(relids, cascade, restart):
            return ["truncate", [tables[relid] for relid in relids], cascade, restart]
        case Origin(commit_lsn, name):
            return ["origin", commit_lsn, name]
        case LogicalMessage(transactional, _, prefix, content):
            return ["message", transactional, prefix, content.decode()]


def test_there_are_recordings():
    assert len(NAMES) >= 7


@pytest.mark.parametrize("name", NAMES)
def test_the_stream_says_what_was_done(name):
    copydata, stream, expected = recording(name)
    session = ReplicationSession(stream["start"], now=0.0)
    events = [session.receive(data) for data in copydata]
    tables = {oid: table for table, oid in expected["relids"].items()}
    types = {oid: text for text, oid in expected["types"].items()}
    messages = [event for event in events if not isinstance(event, Keepalive)]
    assert [told(message, tables, types) for message in messages] == expected["messages"]
    assert not session.in_transaction
    last = events[-1]
    assert isinstance(last, Keepalive)
    assert session.received == last.wal_end


@pytest.mark.parametrize("name", NAMES)
def test_transactions_are_whole_ordered_and_dated(name):
    previous_end = 0
    begin = None
    for message in map(decode, payloads(name)):
        if isinstance(message, Begin):
            begin = message
            assert begin.final_lsn >= previous_end
            assert 1_700_000_000_000_000 < begin.commit_us < 2_000_000_000_000_000
        elif isinstance(message, Commit):
            assert begin is not None
            assert (message.commit_lsn, message.commit_us) == (begin.final_lsn, begin.commit_us)
            assert message.end_lsn > message.commit_lsn
            previous_end = message.end_lsn


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_is_understood(name):
    for payload in payloads(name):
        assert encode(decode(payload)) == payload


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_of_every_message_is_refused(name):
    for payload in payloads(name):
        for cut in range(len(payload)):
            with pytest.raises(ProtocolViolation):
                decode(payload[:cut])


@pytest.mark.parametrize("name", NAMES)
def test_every_changed_byte_is_refused_or_a_message(name):
    for payload in payloads(name):
        changed = bytearray(payload)
        for at in range(len(payload)):
            for value in {0, 1, 0x7F, 0xFF, payload[at] ^ 1, payload[at] ^ 0x80} - {payload[at]}:
                changed[at] = value
                try:
                    message = decode(bytes(changed))
                except ProtocolViolation:
                    continue
                assert encode(message) == changed
            changed[at] = payload[at]


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_or_doubled_bound_of_a_transaction_is_noticed(name):
    copydata = recording(name)[0]
    bounds = [at for at, data in enumerate(copydata) if data[HEADER : HEADER + 1] in (b"B", b"C")]
    assert bounds
    for at in bounds:
        for course in (copydata[:at] + copydata[at + 1 :], copydata[: at + 1] + copydata[at:]):
            session = ReplicationSession(0, now=0.0)
            try:
                for data in course:
                    session.receive(data)
            except ProtocolViolation as refused:
                assert refused.code == "unexpected_message"
            else:
                # Only the very last Commit can be missing without a message that tells.
                assert at == bounds[-1] and session.in_transaction
