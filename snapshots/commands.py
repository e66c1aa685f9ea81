"""A worker's end of the pipe from the copier: also readable in the middle of a chunk."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator

from cdc.load import LoadTask
from snapshots.messages import CopyChunk, SetRate, WorkerSetup, read_command
from snapshots.rate import RateLimit

_READ_BYTES = 1 << 16


class Commands:
    """Lines of a pipe: the setup, then commands in their order; rates count at once.

    Args:
        fd: The pipe; nobody else reads it.
        rate: Takes the worker's share.
    """

    def __init__(self, fd: int, rate: RateLimit) -> None:
        self._fd = fd
        self._rate = rate
        self._unread = bytearray()
        self._waiting: deque[LoadTask | CopyChunk] = deque()
        self._ended = False
        self._readable = select.poll()
        self._readable.register(fd, select.POLLIN)

    def setup(self) -> WorkerSetup | None:
        """The first line; None if the copier has gone without a word."""
        while b"\n" not in self._unread and not self._ended:
            self._read()
        line, _, rest = self._unread.partition(b"\n")
        self._unread = rest
        if self._ended:
            return None
        self._take_lines()
        return WorkerSetup.from_line(bytes(line))

    def look(self) -> None:
        """Take what is there, without waiting."""
        while not self._ended and self._readable.poll(0):
            self._read()
            self._take_lines()

    def topics(self) -> list[str]:
        """Of the tasks that are waiting."""
        return [command.topic for command in self._waiting if isinstance(command, LoadTask)]

    def drop_chunks(self) -> int:
        """Forget the chunks of the task at hand that are waiting; how many they were."""
        dropped = 0
        while self._waiting and isinstance(self._waiting[0], CopyChunk):
            self._waiting.popleft()
            dropped += 1
        return dropped

    def __iter__(self) -> Iterator[LoadTask | CopyChunk]:
        """Commands until the pipe ends."""
        while True:
            self.look()
            while not self._waiting and not self._ended:
                self._readable.poll()
                self.look()
            if not self._waiting:
                return
            yield self._waiting.popleft()

    def _read(self) -> None:
        data = os.read(self._fd, _READ_BYTES)
        self._unread += data
        self._ended = not data

    def _take_lines(self) -> None:
        *lines, rest = self._unread.split(b"\n")
        self._unread = bytearray(rest)
        for command in map(read_command, map(bytes, lines)):
            if isinstance(command, SetRate):
                self._rate.rows_per_second = command.rows_per_second
            else:
                self._waiting.append(command)
