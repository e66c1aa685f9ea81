"""The daemon's process: lock, HTTP, local stack, children, signals. A composition root."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, cast

import structlog
import uvicorn

from cdc.config import DEV_VARIABLE, Config, load_config
from cdc.daemon.child import ChildSpec, python_argv
from cdc.daemon.client import with_package_path
from cdc.daemon.http import http_app
from cdc.daemon.localstack import bring_up, keep_up
from cdc.daemon.logfiles import LogFile
from cdc.daemon.record import DaemonRecord, hold_lock, remove_record, write_record
from cdc.daemon.supervisor import APPLY, DRAIN_SECONDS, Supervisor
from cdc.errors import CdcError, EnvironmentProblem
from cdc.logging import configure_logging
from cdc.runtime import state_folder

log = structlog.get_logger(__name__)

# Long enough for a capture process to make its start checks.
_SETTLE_SECONDS = 20.0


def child_specs(config: Config) -> list[ChildSpec]:
    """One capture child per source, one apply child."""
    path = str(config.path)
    captures = [
        ChildSpec(
            f"capture:{name}",
            python_argv("cdc.daemon.capture_child", "--config", path, "--source", name),
            source=name,
        )
        for name in config.sources
    ]
    return [*captures, ChildSpec(APPLY, python_argv("cdc.daemon.apply_child", "--config", path))]


def run_daemon(
    config: Config,
    *,
    on_started: Callable[[str], None] = lambda url: None,
    notify: Callable[[str], None] | None = None,
    specs: list[ChildSpec] | None = None,
) -> None:
    """Run the daemon until SIGTERM, SIGINT or ``stop``; returns after the drain.

    Args:
        config: The project.
        on_started: Called with the HTTP address once everything has been started.
        notify: Told in words what a person should know; stderr by default.
        specs: Other children than the project's own (tests).

    Raises:
        CdcError: It cannot start, or every source was refused.
    """
    with hold_lock(config):
        logs = state_folder(config, "logs")
        log_file = LogFile(logs, "daemon", keep_raw=config.dev)
        configure_logging("daemon", stream=cast(TextIO, _ToLogFile(log_file)))
        try:
            asyncio.run(
                _run(
                    config,
                    logs,
                    specs if specs is not None else child_specs(config),
                    on_started,
                    notify or _to_stderr,
                )
            )
        finally:
            remove_record(config)
            log_file.close()


async def _run(
    config: Config,
    logs: Path,
    specs: list[ChildSpec],
    on_started: Callable[[str], None],
    notify: Callable[[str], None],
) -> None:
    environment = with_package_path(dict(os.environ))
    if config.dev:
        environment[DEV_VARIABLE] = "1"
    supervisor = Supervisor(
        specs,
        environment=environment,
        folder=config.root,
        logs=logs,
        keep_raw=config.dev,
        notify=notify,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    # A terminal that closes does not end a daemon.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    token = secrets.token_urlsafe(32)
    token_file = _write_token(config, token)
    listener, url = _listen(config.http.listen)
    server = _Server(
        uvicorn.Config(
            http_app(supervisor, token), log_config=None, access_log=False, lifespan="off",
            timeout_graceful_shutdown=2,
        )
    )  # fmt: skip
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    background: list[asyncio.Task[None]] = []
    try:
        write_record(
            config,
            DaemonRecord(
                os.getpid(),
                url,
                str(token_file),
                time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            ),
        )
        log.info("daemon_started", pid=os.getpid(), http=url)
        if config.uses_local_stack:
            await bring_up(config)
            background.append(asyncio.create_task(keep_up(config)))
        if supervisor.draining:
            return
        background.append(asyncio.create_task(_announce(supervisor, url, on_started)))
        await supervisor.run(DRAIN_SECONDS)
        log.info("daemon_stopped")
    finally:
        for task in background:
            task.cancel()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            token_file.unlink()


async def _announce(supervisor: Supervisor, url: str, on_started: Callable[[str], None]) -> None:
    await supervisor.settled(_SETTLE_SECONDS)
    if not supervisor.draining:
        on_started(url)


class _Server(uvicorn.Server):
    """Leaves signals to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


class _ToLogFile:
    """The daemon's own log lines, into its log file."""

    def __init__(self, log_file: LogFile) -> None:
        self._log_file = log_file

    def write(self, text: str) -> int:
        self._log_file.feed(text.encode())
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    def isatty(self) -> bool:
        """No terminal."""
        return False


def _write_token(config: Config, token: str) -> Path:
    path = state_folder(config) / "daemon.token"
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(token)
    return path


def _listen(address: str) -> tuple[socket.socket, str]:
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bare, int(port)))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise EnvironmentProblem(
            "http_address",
            f"the daemon cannot listen at {address}: {error.strerror}",
            remedy="set http.listen to 127.0.0.1:0, which chooses a free port",
        ) from None
    return listener, f"http://{host}:{listener.getsockname()[1]}"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The detached daemon: ``--config PATH --report-to FD``; reports its start once."""
    parser = argparse.ArgumentParser(prog="cdc.daemon.run")
    parser.add_argument("--config", required=True)
    parser.add_argument("--report-to", type=int, required=True)
    options = parser.parse_args(arguments)
    report = _Report(options.report_to)
    try:
        run_daemon(load_config(options.config), on_started=lambda url: report.send({"http": url}))
    except CdcError as error:
        report.send({"error": error.to_json(), "exit_code": error.exit_code})
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    finally:
        report.close()
    return 0


class _Report:
    """One line to the command that started us; later ones have no reader."""

    def __init__(self, handle: int) -> None:
        os.set_inheritable(handle, False)
        self._handle: int | None = handle

    def send(self, record: dict[str, object]) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.write(self._handle, json.dumps(record).encode() + b"\n")
            self.close()

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


if __name__ == "__main__":
    sys.exit(main())
