"""The lock of a lake: one process writes it.

Delta's local log store is atomic inside one JVM only. on ``<lake>/.cdc.lock``; inside,
as JSON, the process that holds it and its JVM. A process that dies lets go of the flock, and its
JVM may outlive it by a commit: the lock is taken only when the recorded JVM is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from cdc.errors import LakeError

LOCK_NAME: Final = ".cdc.lock"
_POLL_SECONDS: Final = 0.05


class LakeLock:
    """The lock while it is held; made by ``hold_lake_lock``."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def record_jvm(self, pid: int) -> None:
        """Note the JVM that will write; to be called before its first commit."""
        self._write({**_process(os.getpid()), "jvm": _process(pid)})

    def _write(self, record: dict[str, Any]) -> None:
        text = json.dumps({"v": 1, **record}).encode()
        os.pwrite(self._handle, text, 0)
        os.ftruncate(self._handle, len(text))


@contextmanager
def hold_lake_lock(lake: str | Path, *, jvm_timeout: float = 60.0) -> Iterator[LakeLock]:
    """Hold the lock of a lake.

    Args:
        lake: The lake's folder; made if it is not there.
        jvm_timeout: Longest wait for the JVM of a holder that died, seconds.

    Raises:
        LakeError: ``lake_locked``: another process holds it, or a JVM that outlives its process.
    """
    folder = Path(lake)
    folder.mkdir(parents=True, exist_ok=True)
    # O_CLOEXEC: a child that inherits the descriptor would keep the flock alive.
    handle = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _locked(folder, "process", _read(handle).get("pid")) from None
        known = _read(handle)
        if known.get("pid") != os.getpid():
            _wait_for_jvm(folder, known.get("jvm"), jvm_timeout)
        lock = LakeLock(handle)
        lock._write(_process(os.getpid()))  # noqa: SLF001 - our own class
        yield lock
    finally:
        # The record stays: our JVM may still be there, and the next holder has to wait for it.
        os.close(handle)


def lock_holder(lake: str | Path) -> int | None:
    """Process id of who holds the lock now, or None."""
    try:
        handle = os.open(Path(lake) / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = _read(handle).get("pid")
        return pid if isinstance(pid, int) else -1
    finally:
        os.close(handle)
    return None


def _process(pid: int) -> dict[str, Any]:
    """A process, told apart from a later one of the same number by its start."""
    try:
        return {"pid": pid, "started": psutil.Process(pid).create_time()}
    except psutil.NoSuchProcess:
        return {"pid": pid, "started": None}


def _read(handle: int) -> dict[str, Any]:
    try:
        record = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _wait_for_jvm(folder: Path, record: Any, timeout: float) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("pid"), int):
        return
    deadline = time.monotonic() + timeout
    while _lives(record):
        if time.monotonic() > deadline:
            raise _locked(folder, "JVM", record["pid"])
        time.sleep(_POLL_SECONDS)


def _lives(record: dict[str, Any]) -> bool:
    try:
        process = psutil.Process(record["pid"])
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        started = record.get("started")
        return started is None or abs(process.create_time() - started) < 1.0
    except psutil.NoSuchProcess:
        return False


def _locked(folder: Path, what: str, pid: Any) -> LakeError:
    return LakeError(
        "lake_locked",
        f"the {what} {pid} writes the lake {folder}; only one may",
        remedy=f"wait for it, or stop it (kill {pid})",
    )
