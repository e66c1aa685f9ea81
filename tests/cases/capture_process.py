"""Capture of a case as a process of its own, forked from one that has loaded all modules.

A second of loading modules at each start would be most of the time of a run that starts capture
five hundred times. Everything else is as the daemon does it: what ended for a passing reason is
started again.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from cdc.daemon import capture_child
from cdc.daemon.backoff import BackOffPolicy
from cdc.daemon.channel import CHANNEL_VARIABLE
from connectors.postgres import source_watch

#: The watch of what the stream never tells looks every 30 s: too long where one waits for it.
_OFTEN_SECONDS: Final = 1.0
_FOR_GOOD: Final = (capture_child.REFUSED, capture_child.SOURCE_STOPPED)
_PR_SET_PDEATHSIG: Final = 1
# Of multiprocessing's processes, whose state several threads must not ask for at once.
_LOCK: Final = threading.Lock()
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["connectors.postgres.capture", "snapshots.copier", "tests.cases.capture_process"]
)


class CaptureProcess:
    """One source's capture, started and killed at will.

    Args:
        config: The project's cdc.yaml.
        source: Its source.
        often: The watch looks every second.
    """

    def __init__(self, config: Path, source: str, *, often: bool) -> None:
        self._config, self._source = config, source
        self._log = config.with_name("capture.log")
        self._looks = config.with_name("looks")
        self._looks.touch()
        self._often = often
        self._process: Any = None
        self._policy = BackOffPolicy()
        self._failures = 0
        self._again_at = 0.0
        #: The exit code after which the daemon would not start it again.
        self.down: int | None = None
        self.restarts = 0

    def start(self) -> None:
        """Start it; it has not begun to work when this returns."""
        if self.down is not None:
            return
        process = _CONTEXT.Process(
            target=run_capture,
            args=(self._config, self._source, self._log, self._looks if self._often else None),
            daemon=True,
        )
        with _LOCK:
            process.start()
        self._process = process

    def kill(self) -> None:
        """End it as a crash would; nothing if it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        with _LOCK:
            process.kill()
        while (code := _exit_code(process)) is None:
            time.sleep(0.01)
        if code in _FOR_GOOD:
            self.down = code
        with _LOCK:
            process.close()

    def tend(self) -> None:
        """What the daemon does: start it again if it has ended and may go on."""
        if self._process is None or (code := _exit_code(self._process)) is None:
            return
        if code in _FOR_GOOD:
            self.down = code
            self.kill()
        elif not self._again_at:
            self._failures += 1
            self._again_at = time.monotonic() + self._policy.wait(self._failures)
        elif time.monotonic() >= self._again_at:
            self._again_at = 0.0
            self.kill()
            self.restarts += 1
            self.start()

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and _exit_code(self._process) is None

    def looks(self) -> int:
        """How often the watch has looked, over all its lives, when it looks often."""
        return self._looks.stat().st_size

    def last_words(self) -> dict[str, Any] | None:
        """The error (code, message, table, position, remedy) that it ended with last."""
        if not self._log.exists():
            return None
        for text in reversed(self._log.read_text(errors="replace").splitlines()):
            try:
                record = json.loads(text)
            except ValueError:
                continue
            if isinstance(record, dict) and record.get("event") == "capture ends":
                return record
        return None


def _exit_code(process: Any) -> int | None:
    with _LOCK:
        code: int | None = process.exitcode
    return code


def run_capture(config: Path, source: str, log: Path, looks: Path | None) -> None:
    """The process: ``cdc.daemon.capture_child``, its output in a file."""
    _die_with_parent()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.environ.pop(CHANNEL_VARIABLE, None)
    if looks is not None:
        _look_often(looks)
    sys.exit(capture_child.main(["--config", str(config), "--source", source]))


def _look_often(looks: Path) -> None:
    """Shorten the watch's interval, and leave a mark after each look."""
    source_watch._EVERY_S = _OFTEN_SECONDS  # type: ignore[misc]
    look = source_watch.SourceWatch.look

    def marked(self: source_watch.SourceWatch) -> None:
        try:
            look(self)
        finally:
            with looks.open("ab") as file:
                file.write(b".")

    source_watch.SourceWatch.look = marked  # type: ignore[method-assign]


def _die_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
