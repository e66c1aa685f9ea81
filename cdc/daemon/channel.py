r"""JSON lines between the daemon and one child, over a socket pair that the child inherits.

Child to daemon, each an object with ``kind``:

    {"kind":"state","state":"loading|streaming|applying|draining|…", …}
    {"kind":"ready","ready":true,"reason":null}
    {"kind":"metrics", <name>: number or object of numbers by table, …}
    {"kind":"error","error":{code,message,table,position,remedy}}        just before it exits
    {"kind":"answer","id","state":"running|done|failed","progress","result","error"}

Daemon to child: ``{"id","verb","args"}``, answered by one or more ``answer``.

Nothing here blocks: a daemon that does not read loses metrics, never answers. Without a daemon
(no variable in the environment) the child's side does nothing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any

from cdc.errors import CdcError

#: Number of the inherited descriptor.
CHANNEL_VARIABLE = "CDC_CHANNEL_FD"
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 22
# Above this, a daemon that does not read loses what a later report repeats.
_MOST_UNSENT = 1 << 20
_REPEATED_KINDS = frozenset({"metrics", "ready", "state"})


@dataclass(frozen=True, slots=True)
class Command:
    """One request to a child; answers carry its ``id``."""

    id: str
    verb: str
    args: dict[str, Any]


class LineBuffer:
    """Bytes in, complete JSON objects out; anything else is dropped."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The objects that are complete now."""
        self._pending += data
        *lines, rest = self._pending.split(b"\n")
        self._pending = rest if len(rest) <= _LONGEST_LINE else bytearray()
        objects = []
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                objects.append(value)
        return objects


def encode_line(record: dict[str, Any]) -> bytes:
    """One JSON object and a newline; what JSON lacks is written as text."""
    return json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"


class ChildChannel:
    """A child's side. Safe to use from several threads."""

    def __init__(self, connection: socket.socket | None) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._buffer = LineBuffer()
        if connection is not None:
            connection.setblocking(False)

    @classmethod
    def from_env(cls) -> ChildChannel:
        """The channel to the daemon that started this process, or one that does nothing.

        The descriptor is taken out of the environment, so that own children don't inherit it.
        """
        number = os.environ.pop(CHANNEL_VARIABLE, "")
        if not number.isdecimal():
            return cls(None)
        connection = socket.socket(fileno=int(number))
        connection.set_inheritable(False)
        return cls(connection)

    @property
    def connected(self) -> bool:
        """Whether a daemon listens."""
        return self._connection is not None

    def fileno(self) -> int:
        """For ``select``: readable when a command may be there; -1 without a daemon."""
        return self._connection.fileno() if self._connection is not None else -1

    def report(self, kind: str, **fields: Any) -> None:
        """Tell the daemon; never blocks, never raises for a daemon that is gone."""
        with self._lock:
            if self._connection is None:
                return
            if len(self._unsent) > _MOST_UNSENT and kind in _REPEATED_KINDS:
                self._flush()
                return
            self._unsent += encode_line({"kind": kind, **fields})
            self._flush()

    def metrics(self, **values: Any) -> None:
        """Current figures: numbers, or objects of numbers by table (``lag_bytes=…``)."""
        self.report("metrics", **values)

    def state(self, state: str, **fields: Any) -> None:
        """What this child is doing, in one word (``loading``, ``streaming``, ``applying``)."""
        self.report("state", state=state, **fields)

    def ready(self, ready: bool, reason: str | None = None) -> None:
        """Whether this child does its work within bounds, and if not, why."""
        self.report("ready", ready=ready, reason=reason)

    def error(self, error: CdcError) -> None:
        """Why this process is about to exit."""
        self.report("error", error=error.to_json())

    def progress(self, command: Command, **progress: Any) -> None:
        """A command is being worked on."""
        self.report("answer", id=command.id, state="running", progress=progress)

    def done(self, command: Command, result: dict[str, Any]) -> None:
        """A command has succeeded."""
        self.report("answer", id=command.id, state="done", result=result)

    def failed(self, command: Command, error: CdcError) -> None:
        """A command has failed."""
        self.report("answer", id=command.id, state="failed", error=error.to_json())

    def commands(self) -> list[Command]:
        """Commands that have arrived since the last call; never blocks."""
        received: list[dict[str, Any]] = []
        with self._lock:
            self._flush()
            while self._connection is not None:
                try:
                    data = self._connection.recv(_CHUNK)
                except (BlockingIOError, InterruptedError):
                    break
                except OSError:
                    data = b""
                if not data:
                    self._close()
                    break
                received += self._buffer.feed(data)
        return [
            Command(str(item["id"]), str(item["verb"]), dict(item.get("args") or {}))
            for item in received
            if "id" in item and "verb" in item
        ]

    def close(self) -> None:
        """Send what is left, waiting at most a second for it, and close."""
        with self._lock:
            if self._connection is None:
                return
            try:
                self._connection.settimeout(1.0)
                self._connection.sendall(self._unsent)
            except OSError:
                pass
            self._close()

    def _flush(self) -> None:
        while self._unsent and self._connection is not None:
            try:
                sent = self._connection.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._close()
                return
            del self._unsent[:sent]

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._unsent.clear()
