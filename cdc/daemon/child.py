"""One supervised child: started, listened to, started again, drained. Runs in asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from cdc.daemon.backoff import BackOffPolicy
from cdc.daemon.channel import CHANNEL_VARIABLE, LineBuffer, encode_line
from cdc.daemon.logfiles import LogFile

log = structlog.get_logger(__name__)

_LAUNCH = Path(__file__).with_name("launch.py")
_CHUNK = 1 << 16
#: Exit codes after which a child is not started again.
REFUSED = 2
SOURCE_STOPPED = 4
_FOR_GOOD = frozenset({REFUSED, SOURCE_STOPPED})


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run.

    Attributes:
        name: ``capture:shop``, ``apply``.
        argv: Program (absolute path) and arguments.
        source: The source that a capture child serves.
    """

    name: str
    argv: tuple[str, ...]
    source: str | None = None


@dataclass(slots=True)
class ChildView:
    """What is known of a child; read by HTTP and metrics.

    Attributes:
        phase: ``new``, ``running``, ``waiting`` (to be started again), ``down`` (for good) or
            ``ended`` (drained).
        state: What the child itself last said that it does; its details beside it.
        ready_at: Monotonic seconds of its last word about readiness.
        error: The ``error`` object of why it is down or was last restarted, until it is ready.
        reported: The ``error`` object that the running process has sent.
        exit_code: Of its last end; negative for a signal.
    """

    name: str
    source: str | None
    phase: str = "new"
    pid: int | None = None
    started: float = 0.0
    state: str = "starting"
    details: dict[str, Any] | None = None
    ready: bool = False
    ready_reason: str | None = None
    ready_at: float = 0.0
    was_ready: bool = False
    restarts: int = 0
    exit_code: int | None = None
    error: dict[str, Any] | None = None
    reported: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """For ``status``: no metrics but those of loads, no command lines."""
        loads = (self.metrics or {}).get("loads") if self.phase == "running" else None
        return {
            "name": self.name,
            "source": self.source,
            "phase": self.phase,
            "pid": self.pid,
            "state": self.state,
            "details": self.details,
            "loads": loads or {},
            "ready": self.ready,
            "ready_reason": self.ready_reason,
            "restarts": self.restarts,
            "exit_code": self.exit_code,
            "error": self.error,
        }


class Child:
    """Keeps one process running until it is drained or ends for good.

    Args:
        spec: What to run.
        environment: Its environment.
        folder: Its working folder.
        log_file: Takes its output.
        policy: Waits between starts.
        on_answer: Takes ``answer`` messages.
        on_change: Called after each change of phase.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        environment: dict[str, str],
        folder: Path,
        log_file: LogFile,
        policy: BackOffPolicy,
        on_answer: Callable[[dict[str, Any]], None],
        on_change: Callable[[Child], None],
    ) -> None:
        self.spec = spec
        self.view = ChildView(spec.name, spec.source)
        self._environment = environment
        self._folder = folder
        self._log_file = log_file
        self._policy = policy
        self._on_answer = on_answer
        self._on_change = on_change
        self._draining = asyncio.Event()
        self._drain_seconds = 0.0
        self._writer: asyncio.StreamWriter | None = None

    @property
    def running(self) -> bool:
        """Whether a process is there to be talked to."""
        return self._writer is not None and self.view.phase == "running"

    @property
    def down_for_good(self) -> bool:
        """Whether it will not be started again."""
        return self.view.phase in ("down", "ended")

    async def supervise(self) -> None:
        """Run until drained or down for good."""
        failures = 0
        while not self._draining.is_set():
            code = await self._run_once()
            view = self.view
            view.exit_code = code
            if self._draining.is_set():
                break
            if code in _FOR_GOOD:
                self._set_down(code)
                return
            lived = time.monotonic() - view.started
            healthy = view.was_ready and lived >= self._policy.healthy_after
            failures = 1 if healthy else failures + 1
            wait = self._policy.wait(failures)
            view.restarts += 1
            view.error = view.reported or _ended(self.spec.name, code)
            self._change("waiting")
            log.warning(
                "child_ended", child=self.spec.name, exit_code=code, again_in_s=wait,
                error=view.error.get("code"),
            )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), wait)
        self._change("ended")

    def drain(self, seconds: float) -> None:
        """Ask it to end: SIGTERM, and after ``seconds`` SIGKILL; ``supervise`` then returns."""
        self._drain_seconds = seconds
        self._draining.set()

    def send(self, record: dict[str, Any]) -> bool:
        """Send a command; False when no process is there."""
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(encode_line(record))
        return True

    async def _run_once(self) -> int:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                # -S -E: the launcher needs the standard library only, and starts faster.
                sys.executable, "-S", "-E", str(_LAUNCH), str(os.getpid()), *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**self._environment, CHANNEL_VARIABLE: str(theirs.fileno())},
                cwd=self._folder,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C is for the daemon, which then drains; and a kill takes the JVM along.
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            log.warning("child_not_started", child=self.spec.name, reason=error.strerror)
            return 1
        finally:
            theirs.close()
        view = self.view
        view.pid = process.pid
        view.started = time.monotonic()
        view.state, view.details, view.reported = "starting", None, None
        view.ready, view.ready_reason, view.was_ready = False, "starting", False
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._change("running")
        log.info("child_started", child=self.spec.name, pid=process.pid)
        listening = asyncio.create_task(self._listen(reader))
        ending = asyncio.create_task(self._end_when_draining(process))
        await self._copy_output(process)
        code = await process.wait()
        ending.cancel()
        # What it said before its end is still in the socket; its end closes it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(listening, 5.0)
        self._writer.close()
        self._writer = None
        _kill_session(process.pid)
        view.pid, view.ready, view.ready_reason = None, False, "not running"
        return code

    async def _end_when_draining(self, process: asyncio.subprocess.Process) -> None:
        await self._draining.wait()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._drain_seconds)
        except TimeoutError:
            log.warning("child_killed", child=self.spec.name, after_s=self._drain_seconds)
            _kill_session(process.pid)

    async def _copy_output(self, process: asyncio.subprocess.Process) -> None:
        stream = process.stdout
        while stream is not None:
            reading = asyncio.ensure_future(stream.read(_CHUNK))
            if process.returncode is None:
                ending = asyncio.ensure_future(process.wait())
                await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
            # A grandchild may hold the pipe open after the child's end.
            try:
                data = await asyncio.wait_for(reading, 1.0)
            except TimeoutError:
                break
            if not data:
                break
            self._log_file.feed(data)
        self._log_file.end()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        buffer = LineBuffer()
        while True:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                return
            if not data:
                return
            for message in buffer.feed(data):
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        view = self.view
        kind = message.pop("kind", None)
        if kind == "metrics":
            view.metrics = {**(view.metrics or {}), **message}
        elif kind == "state":
            before = view.state
            view.state = str(message.pop("state", view.state))
            view.details = message or None
            if view.state != before:
                log.info("child_state", child=self.spec.name, state=view.state)
                self._on_change(self)
        elif kind == "ready":
            view.ready = message.get("ready") is True
            view.ready_reason = None if view.ready else str(message.get("reason") or "not ready")
            view.ready_at = time.monotonic()
            if view.ready:
                view.was_ready, view.error = True, None
        elif kind == "error" and isinstance(message.get("error"), dict):
            view.reported = message["error"]
        elif kind == "answer":
            self._on_answer(message)

    def _set_down(self, code: int) -> None:
        view = self.view
        view.error = view.reported or _ended(self.spec.name, code)
        view.state = "errored"
        self._change("down")
        log.error("child_down", child=self.spec.name, exit_code=code, **_error_fields(view.error))

    def _change(self, phase: str) -> None:
        self.view.phase = phase
        self._on_change(self)


def python_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of one of our own modules as a child."""
    # -P: a folder of the user's with a package's name must not stand in for ours.
    return (sys.executable, "-P", "-m", module, *arguments)


def _ended(name: str, code: int) -> dict[str, Any]:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return {
        "code": "child_ended",
        "message": f"the process {name} ended with {how}",
        "table": None,
        "position": None,
        "remedy": f"see .cdc/logs/{name.replace(':', '.')}.jsonl",
    }


def _error_fields(error: dict[str, Any]) -> dict[str, Any]:
    return {key: error.get(key) for key in ("code", "message", "table", "position", "remedy")}


def _kill_session(pid: int) -> None:
    # The child leads a session; its id stays taken while any member lives.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
