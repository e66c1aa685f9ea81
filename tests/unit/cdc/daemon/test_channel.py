"""The channel between the daemon and a child."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.daemon.channel import CHANNEL_VARIABLE, ChildChannel, Command, LineBuffer, encode_line
from cdc.errors import LakeError


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    channel = ChildChannel(theirs)
    yield ours, channel
    channel.close()
    ours.close()


def received(ours: socket.socket) -> list[dict[str, Any]]:
    ours.settimeout(2)
    return LineBuffer().feed(ours.recv(1 << 20))


def test_reports_arrive_as_json_lines(pair):
    ours, channel = pair
    channel.state("loading", table="public.t", rows=3)
    channel.ready(False, "loading")
    channel.metrics(lag_bytes=5, replicas={"s.public.t": {"lag_bytes": 1}})
    channel.error(LakeError("x", "y", table="t", remedy="z"))
    assert received(ours) == [
        {"kind": "state", "state": "loading", "table": "public.t", "rows": 3},
        {"kind": "ready", "ready": False, "reason": "loading"},
        {"kind": "metrics", "lag_bytes": 5, "replicas": {"s.public.t": {"lag_bytes": 1}}},
        {
            "kind": "error",
            "error": {"code": "x", "message": "y", "table": "t", "position": None, "remedy": "z"},
        },
    ]


def test_commands_are_polled_and_answered(pair):
    ours, channel = pair
    assert channel.commands() == []
    line = encode_line({"id": "1", "verb": "rebuild", "args": {"table": "t"}})
    ours.sendall(line[:7])
    assert channel.commands() == []
    ours.sendall(line[7:] + b"not json\n[1]\n" + encode_line({"id": "2", "verb": "x"}))
    first, second = channel.commands()
    assert first == Command("1", "rebuild", {"table": "t"})
    assert second.args == {}
    channel.progress(first, rows=7)
    channel.done(first, {"rows": 9})
    channel.failed(second, LakeError("no", "not known"))
    answers = received(ours)
    assert [(a["id"], a["state"]) for a in answers] == [
        ("1", "running"),
        ("1", "done"),
        ("2", "failed"),
    ]
    assert answers[0]["progress"] == {"rows": 7}
    assert answers[1]["result"] == {"rows": 9}
    assert answers[2]["error"]["code"] == "no"


def test_a_daemon_that_does_not_read_blocks_nobody_and_loses_no_answer(pair):
    ours, channel = pair
    for number in range(60_000):
        channel.metrics(number=number, text="x" * 50)
    channel.done(Command("1", "rebuild", {}), {})
    data = b""
    buffer = LineBuffer()
    ours.setblocking(False)
    messages = []
    while True:
        channel.commands()
        try:
            data = ours.recv(1 << 20)
        except BlockingIOError:
            break
        messages += buffer.feed(data)
    assert messages[-1]["kind"] == "answer"
    assert len(messages) < 60_000
    # What did arrive is whole and in order.
    numbers = [m["number"] for m in messages if m["kind"] == "metrics"]
    assert numbers == sorted(numbers)


def test_a_daemon_that_is_gone_is_no_error(pair):
    ours, channel = pair
    ours.close()
    channel.metrics(a=1)
    channel.metrics(a=2)
    assert channel.commands() == []
    channel.ready(True)
    assert not channel.connected
    assert channel.fileno() == -1


def test_without_a_daemon_nothing_happens(monkeypatch):
    monkeypatch.delenv(CHANNEL_VARIABLE, raising=False)
    channel = ChildChannel.from_env()
    channel.state("loading")
    assert channel.commands() == []
    assert not channel.connected
    channel.close()


def test_own_children_do_not_inherit_the_channel(monkeypatch):
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    monkeypatch.setenv(CHANNEL_VARIABLE, str(theirs.detach()))
    channel = ChildChannel.from_env()
    assert CHANNEL_VARIABLE not in os.environ
    assert not os.get_inheritable(channel.fileno())
    channel.ready(True)
    assert received(ours)[0]["ready"] is True
    channel.close()
    ours.close()


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text())), st.data())
def test_any_cut_gives_the_same_objects(records, data):
    text = b"".join(encode_line(record) for record in records)
    buffer = LineBuffer()
    found = []
    while text:
        cut = data.draw(st.integers(1, len(text)))
        found += buffer.feed(text[:cut])
        text = text[cut:]
    assert found == json.loads(json.dumps(records))
