"""A worker process and its pipes; nothing here waits for it to read or to speak."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from snapshots.messages import Command, Message, WorkerSetup, command_line, read_message

_READ_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
# For glibc: what large rows took goes back to the system at once, smaller pieces are kept.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(16 << 20)}


class Worker:
    """One process.

    Dies with the thread that made it.

    Args:
        setup: What the worker is told first.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        environment = os.environ.copy()
        here = str(Path(__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (here, environment.get("PYTHONPATH")) if part
        )
        environment |= _MEMORY
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "snapshots.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        # A worker that hangs does not read; its copier must not hang with it.
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        _enlarge(self._stdin.fileno())
        self._unread = b""
        self._unsent = bytearray(setup.to_line())
        self.flush()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when it has said something or has ended."""
        return self._stdout.fileno()

    def tell(self, command: Command) -> None:
        """Give it a command; see ``flush``."""
        self._unsent += command_line(command)
        self.flush()

    def flush(self) -> None:
        """Send what did not go into the pipe yet, as far as it goes."""
        while self._unsent:
            try:
                sent = os.write(self._stdin.fileno(), self._unsent)
            except BlockingIOError:
                return
            except BrokenPipeError:
                # It has ended; what it said, or its silence, is read from its output.
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def read(self) -> list[Message | None]:
        """What it said since the last call; None at the end of its output."""
        messages: list[Message | None] = []
        while True:
            try:
                data = os.read(self._stdout.fileno(), _READ_BYTES)
            except BlockingIOError:
                return messages
            if not data:
                messages.append(None)
                return messages
            *lines, self._unread = (self._unread + data).split(b"\n")
            messages += map(read_message, lines)

    def kill(self) -> str:
        """End it now, if it runs, and wait for its end.

        Returns:
            How it ended, for people.
        """
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        self._stdin.close()
        self._stdout.close()
        return f"by signal {-code}" if code < 0 else f"with exit code {code}"


def _enlarge(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except PermissionError:
        # The user has too many pipes: it goes in smaller portions.
        return
