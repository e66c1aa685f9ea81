"""Worker processes of a load: started, listened to, ended."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog

from cdc.closing import Closing
from cdc.errors import EnvironmentProblem
from cdc.names import TableId
from snapshots.messages import Message, WorkerSetup, range_line, read_message
from snapshots.plan import BlockRange

log = structlog.get_logger(__name__)

_READ_BYTES = 1 << 16
_DRAIN_SECONDS = 20.0


class Worker:
    """One process and its pipes.

    Args:
        setup: What the worker is told first.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.number = setup.number
        environment = os.environ.copy()
        here = str(Path(__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (here, environment.get("PYTHONPATH")) if part
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "snapshots.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._unread = b""
        self._write(setup.to_line())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """For a selector."""
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        return self._process.stdout.fileno()

    def give(self, blocks: BlockRange) -> None:
        """Hand it a range."""
        self._write(range_line(blocks))

    def read(self) -> Iterator[Message | None]:
        """What it said since the last call; None at the end of its output."""
        data = os.read(self.fileno(), _READ_BYTES)
        if not data:
            yield None
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            yield read_message(line)

    def died(self, table: TableId | None) -> EnvironmentProblem:
        """The error for a process that ended without a word."""
        code = self._process.wait()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return EnvironmentProblem(
            "snapshot_worker_died",
            f"snapshot worker {self.number} ended {how}",
            table=str(table) if table else None,
            remedy="start again: the load begins anew; is there enough memory?",
        )

    def finish(self) -> None:
        """Tell it that there is no more to do, and wait for its end."""
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        self._process.stdin.close()
        try:
            self._process.wait(_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            # All that it was given is committed; only its goodbyes are missing.
            log.warning("snapshot worker does not end", number=self.number)

    def kill(self) -> None:
        """End it now, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        left = memoryview(line)
        try:
            while left:
                left = left[self._process.stdin.write(left) :]
        except BrokenPipeError:
            # It has ended; what it said, or its silence, is read from its output.
            return


class WorkerPool(Closing):
    """All workers of a load; leaving the ``with`` block ends them."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()

    def start(self, setup: WorkerSetup) -> None:
        """Start one more worker."""
        worker = Worker(setup)
        self._workers.append(worker)
        self._selector.register(worker, selectors.EVENT_READ, worker)

    @property
    def pids(self) -> list[int]:
        """Of all processes."""
        return [worker.pid for worker in self._workers]

    def messages(self, timeout: float) -> Iterator[tuple[Worker, Message | None]]:
        """What workers say within ``timeout`` seconds; None for one whose output ended."""
        for key, _ in self._selector.select(timeout):
            worker: Worker = key.data
            for message in worker.read():
                yield worker, message

    def drain(self) -> None:
        """Let all workers end by themselves."""
        for worker in self._workers:
            worker.finish()

    def close(self) -> None:
        """End all workers that have not ended by themselves."""
        for worker in self._workers:
            worker.kill()
        self._selector.close()
