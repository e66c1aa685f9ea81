"""What other commands ask of a running daemon, and how one is started and stopped."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdc.config import DEV_VARIABLE, Config
from cdc.daemon.record import DaemonRecord, is_locked, running_daemon
from cdc.errors import CdcError, EnvironmentProblem
from cdc.runtime import state_folder

_HTTP_TIMEOUT_S = 10.0
_POLL_S = 0.2
# The drain's 30 s and what comes after it.
_STOP_PATIENCE_S = 40.0
_START_PATIENCE_S = 180.0


def send_command(
    daemon: DaemonRecord, verb: str, args: dict[str, Any], *, command_id: str | None = None
) -> dict[str, Any]:
    """Ask for a command; the answer is its record, which may be unfinished.

    Raises:
        CdcError: As the daemon answers.
        EnvironmentProblem: ``daemon_unreachable``.
    """
    body = {"id": command_id or uuid.uuid4().hex, "verb": verb, "args": args}
    return _request(daemon, "POST", "/v1/commands", body)


def wait_for_command(
    daemon: DaemonRecord,
    command: dict[str, Any],
    on_progress: Callable[[dict[str, Any]], None] = lambda progress: None,
    *,
    on_poll: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Wait for the end of a command and give its ``result``.

    Args:
        daemon: Which was asked.
        command: As from ``send_command``.
        on_progress: Told when the command's own progress has changed.
        on_poll: Called after each look at the command.

    Raises:
        CdcError: The command failed; its error.
        EnvironmentProblem: ``daemon_unreachable``.
    """
    shown: dict[str, Any] = {}
    while command["state"] not in ("done", "failed"):
        time.sleep(_POLL_S)
        path = f"/v1/commands/{urllib.parse.quote(command['id'], safe='')}"
        command = _request(daemon, "GET", path)
        if command["progress"] != shown:
            shown = command["progress"]
            on_progress(shown)
        on_poll()
    if command["state"] == "failed":
        raise _as_error(command["error"] or {})
    result: dict[str, Any] = command["result"] or {}
    return result


def daemon_status(daemon: DaemonRecord) -> dict[str, Any]:
    """The children of the daemon and how they fare.

    Raises:
        EnvironmentProblem: ``daemon_unreachable``.
    """
    return _request(daemon, "GET", "/v1/status")


def stop_daemon(config: Config) -> int | None:
    """SIGTERM, and wait until the daemon has drained; its pid, or None when none ran.

    Raises:
        EnvironmentProblem: ``daemon_foreign``, ``daemon_unreachable``.
        CdcError: ``stop_timeout``.
    """
    daemon = _come_up(config)
    if daemon is None:
        return None
    try:
        os.kill(daemon.pid, signal.SIGTERM)
    except ProcessLookupError:
        return None
    except PermissionError:
        raise EnvironmentProblem(
            "daemon_foreign",
            f"the daemon (pid {daemon.pid}) belongs to another user",
            remedy="run cdc stop as the user who started it",
        ) from None
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while is_locked(config):
        if time.monotonic() > deadline:
            raise CdcError(
                "stop_timeout",
                f"the daemon (pid {daemon.pid}) has not ended within {_STOP_PATIENCE_S:.0f} s",
                remedy=f"kill -9 {daemon.pid}: nothing is lost, the next start resumes",
            )
        time.sleep(0.05)
    return daemon.pid


def start_detached(config: Config) -> DaemonRecord:
    """Start a daemon that outlives this process, and wait until it is up.

    Raises:
        CdcError: Whatever kept it from starting.
    """
    logs = state_folder(config, "logs")
    reading, writing = os.pipe()
    environment = {**os.environ, **({DEV_VARIABLE: "1"} if config.dev else {})}
    with (logs / "daemon.out").open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-P", "-m", "cdc.daemon.run",
                "--config", str(config.path), "--report-to", str(writing),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=with_package_path(environment),
            cwd=config.root,
            pass_fds=(writing,),
            start_new_session=True,
        )  # fmt: skip
    os.close(writing)
    report = _read_report(reading)
    if report is not None and "error" in report:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_PATIENCE_S)
        raise _as_error(report["error"], int(report.get("exit_code", 1)))
    daemon = running_daemon(config) if report is not None else None
    if daemon is None:
        raise CdcError(
            "daemon_not_started",
            "the daemon ended before it was up",
            remedy=f"see {logs / 'daemon.out'}",
        )
    return daemon


def with_package_path(environment: dict[str, str]) -> dict[str, str]:
    """``environment`` in which Python finds this package, when it is not installed."""
    root = Path(__file__).resolve().parents[2]
    if root.name in ("site-packages", "dist-packages"):
        return environment
    paths = [str(root), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _come_up(config: Config) -> DaemonRecord | None:
    # A daemon that has just begun holds the lock before it has written its record.
    deadline = time.monotonic() + _HTTP_TIMEOUT_S
    while is_locked(config):
        daemon = running_daemon(config)
        if daemon is not None:
            return daemon
        if time.monotonic() > deadline:
            raise EnvironmentProblem(
                "daemon_unreachable", "a daemon holds the lock but does not say where it is"
            )
        time.sleep(0.05)
    return None


def _read_report(handle: int) -> dict[str, Any] | None:
    """The one line that a starting daemon writes; None when it ends without."""
    import select

    data = b""
    deadline = time.monotonic() + _START_PATIENCE_S
    try:
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise CdcError(
                    "start_timeout",
                    f"the daemon was not up within {_START_PATIENCE_S:.0f} s; it still tries",
                    remedy="cdc status shows how far it is, cdc stop ends it",
                )
            chunk = os.read(handle, 1 << 16)
            if not chunk:
                return None
            data += chunk
    finally:
        os.close(handle)
    record: dict[str, Any] = json.loads(data)
    return record


def _request(
    daemon: DaemonRecord, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    address = urllib.parse.urlsplit(daemon.http)
    connection = http.client.HTTPConnection(
        address.hostname or "127.0.0.1", address.port, timeout=_HTTP_TIMEOUT_S
    )
    try:
        token = Path(daemon.token_file).read_text(encoding="ascii").strip()
        connection.request(
            method,
            path,
            body=json.dumps(body) if body is not None else None,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        response = connection.getresponse()
        record = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise EnvironmentProblem(
            "daemon_unreachable",
            f"the daemon (pid {daemon.pid}) does not answer: {type(error).__name__}",
            remedy="cdc stop, then cdc start",
        ) from None
    finally:
        connection.close()
    if not isinstance(record, dict):
        raise EnvironmentProblem("daemon_unreachable", "the daemon's answer is not understood")
    if response.status >= 400:
        raise _as_error(record.get("error") or {})
    return record


def _as_error(error: dict[str, Any], exit_code: int = 1) -> CdcError:
    made = CdcError(
        str(error.get("code") or "failed"),
        str(error.get("message") or "the command failed"),
        table=error.get("table"),
        position=error.get("position"),
        remedy=error.get("remedy"),
    )
    # The class is not known any more; its exit code is.
    made.exit_code = exit_code  # type: ignore[misc]
    return made
