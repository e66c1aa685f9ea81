"""Commands to capture inside the test's process, as the daemon gives them."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from cdc.daemon.channel import ChildChannel, LineBuffer, encode_line
from tests.support.capturing import SOURCE


class Asking:
    """A channel on which the test asks, as the daemon would."""

    def __init__(self, source):
        self._ours, theirs = socket.socketpair()
        self._lines = LineBuffer()
        self.answers: list[Any] = []
        self._channel = source.channel = ChildChannel(theirs)

    def close(self):
        self._ours.close()
        self._channel.close()

    def ask(self, id, *tables, verb="snapshot", **more):
        names = [["public", table] for table in tables]
        command = {"id": id, "verb": verb, "args": {"source": SOURCE, "tables": names, **more}}
        self._ours.sendall(encode_line(command))

    def answer(self, source, id):
        """The end of a command."""

        def ended():
            self._read()
            return bool(self._ends(id))

        source.wait_until(ended, 60, f"the answer to {id}")
        return self._ends(id)[0]

    def metrics(self):
        """The newest that capture has told of; None before."""
        self._read()
        told = [line for line in self.answers if line["kind"] == "metrics"]
        return told[-1] if told else None

    def _read(self):
        self._ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.answers += self._lines.feed(self._ours.recv(1 << 20))

    def _ends(self, id):
        return [
            line for line in self.answers if line.get("id") == id and line["state"] != "running"
        ]
