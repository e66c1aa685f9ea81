"""``cdc start`` as a user would run it, watched: what it does, and what went wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdc.daemon import launch
from cdc.daemon.client import daemon_status, send_command, wait_for_command, with_package_path
from cdc.daemon.record import DaemonRecord, running_daemon
from cdc.errors import CdcError
from cdc.runtime import state_folder
from deploy.demo.project import Project

_POLL_S = 0.3
_UP_PATIENCE_S = 120.0
#: The daemon's own drain of 30 s, and what comes after it.
_STOP_PATIENCE_S = 40.0
#: A child that cannot be kept up is started again at first; this often is no passing trouble.
_MOST_RESTARTS = 3
_TAIL_LINES = 8


class Daemon:
    """A child process ``cdc start``.

    Args:
        project: With its servers up.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._process: subprocess.Popen[bytes] | None = None
        self._record: DaemonRecord | None = None
        self._output = state_folder(project.config, "logs") / "start.out"
        # What Spark leaves in the temporary folder goes with the project.
        self._scratch = state_folder(project.config, "tmp")

    def start(self) -> None:
        """Start it, and wait until it can be asked.

        Raises:
            CdcError: ``demo_daemon``, when it ends or does not come up.
        """
        command = [sys.executable, "-m", "cdc.cli.main", "start", "-c", "cdc.yaml"]
        if not self._project.outlives:
            # However this process ends, the daemon ends with it.
            command = [sys.executable, launch.__file__, str(os.getpid()), *command]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._project.folder,
                env=with_package_path({**os.environ, "TMPDIR": str(self._scratch)}),
                # Ctrl-C is ours; we end it in order.
                start_new_session=True,
            )
        deadline = time.monotonic() + _UP_PATIENCE_S
        while self._record is None:
            self._check_process()
            if time.monotonic() > deadline:
                raise CdcError("demo_daemon", "cdc start does not come up")
            time.sleep(_POLL_S)
            self._record = running_daemon(self._project.config)

    @property
    def record(self) -> DaemonRecord:
        """Where it is."""
        if self._record is None:
            raise RuntimeError("the daemon has not been started")
        return self._record

    def children(self) -> dict[str, dict[str, Any]]:
        """Its processes by name, as ``cdc status`` shows them.

        Raises:
            CdcError: The daemon has ended, or a process is down or cannot be kept up.
        """
        self._check_process()
        found = {child["name"]: child for child in daemon_status(self.record)["children"]}
        for name, child in found.items():
            error = child.get("error")
            lost = child["phase"] == "down" or child["restarts"] >= _MOST_RESTARTS
            if lost and not child["ready"]:
                error = error or {}
                raise CdcError(
                    str(error.get("code") or "demo_daemon"),
                    f"the process {name} fails: {error.get('message') or 'it says nothing'}",
                    table=error.get("table"),
                    position=error.get("position"),
                    remedy=error.get("remedy"),
                )
        return found

    def rebuild(self, table: str, on_progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """``cdc rebuild TABLE --from-offset 0``; its result.

        Raises:
            CdcError: The rebuild's error.
        """
        asked = send_command(self.record, "rebuild", {"table": table, "from_offset": 0})
        return wait_for_command(self.record, asked, on_progress)

    def apply_now(self) -> None:
        """Ask for a merge without waiting for the interval to end."""
        send_command(self.record, "apply_now", {})

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what has not ended by then."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """SIGKILL; its children die with it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def tail(self) -> list[str]:
        """What was last said of warnings and errors, for a person; no secrets are in logs."""
        lines = _last_lines(self._output)
        for path in sorted(self._output.parent.glob("*.jsonl")):
            lines += [f"{path.stem}: {line}" for line in _last_troubles(path)]
        return lines

    def _check_process(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise CdcError(
                "demo_daemon", f"cdc start has ended with code {self._process.returncode}"
            )


def _last_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []


def _last_troubles(path: Path) -> list[str]:
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("level") in ("warning", "error", "critical") or record.get("raw"):
            found.append(_in_words(record))
    return found[-_TAIL_LINES:]


def _in_words(record: dict[str, Any]) -> str:
    known = ("event", "code", "message", "table", "position", "remedy")
    words = [str(record[name]) for name in known if record.get(name)]
    for link in record.get("exception") or []:
        words.append(str(link.get("type")))
        words += [str(frame) for frame in (link.get("frames") or [])[-1:]]
    return "; ".join(words)
