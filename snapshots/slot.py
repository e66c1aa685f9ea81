"""One worker of the copier over its lives: what it has to do, and what its dead left behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from cdc.load import LoadKey, LoadTask
from snapshots.messages import Command, CopyChunk, Message, SetRate, WorkerSetup
from snapshots.schedule import Chunk

FIRST_BACK_OFF = 0.5
MOST_BACK_OFF = 10.0
# Chunks are handed out for so many seconds ahead, because the copier is polled rarely.
_AHEAD_SECONDS = 1.0
_MOST_AHEAD = 32


class Process(Protocol):
    """A worker process: pool.Worker, or a test's."""

    def fileno(self) -> int:
        """Readable when it has said something or has ended."""

    def tell(self, command: Command) -> None:
        """Give it a command, without waiting."""

    def flush(self) -> None:
        """Send what did not go out yet, as far as it goes."""

    def read(self) -> list[Message | None]:
        """What it said; None at the end."""

    def kill(self) -> str:
        """End it and wait for its end; how it ended."""


class Slot:
    """The place of one worker, with one transactional id.

    Args:
        number: Of the worker, from 1.
        first_back_off: Seconds to wait after the first failure.

    Attributes:
        process: Runs now, if any does.
        ready: Whether its transactional id is registered.
        queue: Chunks that it was given; it is busy with the first.
        lost: Chunks that a process which was not fenced yet may still be writing. They may not
            be copied by anybody before the id was registered anew.
        not_before: When the next process may be started.
        heard: When it last said something, or was given something to do.
        idle_since: Since when it has nothing to do.
    """

    def __init__(self, number: int, first_back_off: float = FIRST_BACK_OFF) -> None:
        self.number = number
        self._first_back_off = first_back_off
        self.process: Process | None = None
        self.ready = False
        self.queue: deque[Chunk] = deque()
        self.lost: list[Chunk] = []
        self.not_before = 0.0
        self.heard = 0.0
        self.idle_since = 0.0
        self.failed_starts = 0
        self._back_off = first_back_off
        self._task: LoadTask | None = None
        self._rate: float | None = None
        self._seconds: float | None = None

    def start(self, make: Callable[[WorkerSetup], Process], setup: WorkerSetup, now: float) -> None:
        """Start a process."""
        self.process = make(setup)
        self.heard = now

    def give(self, chunk: Chunk, task: LoadTask, now: float) -> None:
        """Hand out a chunk."""
        assert self.process is not None  # noqa: S101 - for the type checker
        if self._task is not task:
            self.process.tell(task)
            self._task = task
        if not self.queue:
            self.heard = now
        self.process.tell(CopyChunk(chunk[1]))
        self.queue.append(chunk)

    def limit(self, rows_per_second: float) -> None:
        """Tell its share, if it is another than before."""
        if self.process is not None and self._rate != rows_per_second:
            self.process.tell(SetRate(rows_per_second))
            self._rate = rows_per_second

    def finished(self, seconds: float, now: float) -> Chunk:
        """The first chunk of the queue is done."""
        self._seconds = seconds if self._seconds is None else (self._seconds + seconds) / 2
        self._back_off = self._first_back_off
        return self.dropped(now)

    def dropped(self, now: float) -> Chunk:
        """The first chunk of the queue is not the worker's any more."""
        chunk = self.queue.popleft()
        if not self.queue:
            self.idle_since = now
        return chunk

    @property
    def depth(self) -> int:
        """How many chunks it should have."""
        if not self._seconds:
            return 2
        return max(2, min(_MOST_AHEAD, 1 + round(_AHEAD_SECONDS / self._seconds)))

    def has(self, key: LoadKey) -> bool:
        """Whether its process works on a load, or will."""
        return any(chunk[0] == key for chunk in self.queue)

    def left(self, key: LoadKey) -> bool:
        """Whether a process that was not fenced may still write to a load's topic."""
        return any(chunk[0] == key for chunk in self.lost)

    def kill(self, not_before: float) -> str:
        """End the process; its chunks are lost. Returns how it ended, for people."""
        assert self.process is not None  # noqa: S101 - for the type checker
        how = self.process.kill()
        self.process = None
        self.ready = False
        self.lost.extend(self.queue)
        self.queue.clear()
        self.not_before = not_before
        self._task, self._rate = None, None
        return how

    def fenced(self, now: float) -> list[Chunk]:
        """No earlier process can write any more; what is to be copied again."""
        lost, self.lost = self.lost, []
        self.failed_starts = 0
        self.idle_since = now
        return lost

    def back_off(self) -> float:
        """Seconds to wait before the next process; longer each time, until a chunk is done."""
        seconds = self._back_off
        self._back_off = min(MOST_BACK_OFF, 2 * seconds)
        return seconds
