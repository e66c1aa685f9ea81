"""Which daemon runs: ``.cdc/daemon.lock`` says whether, ``.cdc/daemon.json`` says where."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc.config import Config
from cdc.errors import EnvironmentProblem
from cdc.runtime import read_json, state_folder, write_json

# Others look whether the lock is held by taking it for a moment.
_LOCK_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class DaemonRecord:
    """Contents of daemon.json.

    Attributes:
        pid: The daemon's process.
        http: Its address, ``http://127.0.0.1:PORT``.
        token_file: Path of the file with the bearer token.
        started: Start time, ISO 8601 in UTC.
    """

    pid: int
    http: str
    token_file: str
    started: str

    def to_json(self) -> dict[str, Any]:
        """As in daemon.json."""
        return {
            "pid": self.pid,
            "http": self.http,
            "token_file": self.token_file,
            "started": self.started,
        }


def lock_path(config: Config) -> Path:
    """The file whose flock the daemon holds."""
    return config.state_dir / "daemon.lock"


def record_path(config: Config) -> Path:
    """The file that says where the daemon is."""
    return config.state_dir / "daemon.json"


@contextlib.contextmanager
def hold_lock(config: Config) -> Iterator[None]:
    """Be the one daemon of this project.

    Raises:
        EnvironmentProblem: ``daemon_running``.
    """
    state_folder(config)
    handle = os.open(lock_path(config), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(
                        "daemon_running",
                        "a daemon of this project runs already",
                        remedy="cdc status shows it, cdc stop ends it",
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


def is_locked(config: Config) -> bool:
    """Whether a daemon holds the lock now."""
    try:
        handle = os.open(lock_path(config), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise EnvironmentProblem(
            "state_unreadable",
            f"{lock_path(config)} cannot be opened: {error.strerror}",
            remedy="run cdc as the user who started the daemon",
        ) from None
    try:
        # Shared, so that two who look do not take each other for a daemon.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def running_daemon(config: Config) -> DaemonRecord | None:
    """The daemon of this project; None when none runs, or it has not come up yet.

    Raises:
        EnvironmentProblem: ``state_unreadable``.
    """
    if not is_locked(config):
        return None
    record = read_json(record_path(config))
    if record is None:
        return None
    try:
        return DaemonRecord(
            int(record["pid"]),
            str(record["http"]),
            str(record["token_file"]),
            str(record["started"]),
        )
    except (KeyError, TypeError, ValueError):
        raise EnvironmentProblem(
            "state_unreadable", f"{record_path(config)} is not as a daemon writes it"
        ) from None


def write_record(config: Config, record: DaemonRecord) -> None:
    """Say where this daemon is."""
    write_json(record_path(config), record.to_json())


def remove_record(config: Config) -> None:
    """This daemon is about to end."""
    with contextlib.suppress(FileNotFoundError):
        record_path(config).unlink()
