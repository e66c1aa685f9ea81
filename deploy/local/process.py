"""One server process: started detached, found again later by what was recorded of it."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

_POLL_SECONDS = 0.05
# Two readings of one process's start time differ by rounding, and by steps of the clock.
_SAME_START_SECONDS = 2.0
# Loading a program takes milliseconds, longer where its file has to be read first.
_EXEC_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine that a server runs as."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The account for a server that refuses root; None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    return Account("nobody", 65534, 65534)


@cache
def _spawner() -> ThreadPoolExecutor:
    # PR_SET_PDEATHSIG fires when the THREAD that forked ends, so one thread that lives as long
    # as the process starts every server.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-spawner")


# Popen objects of children that still run: collected, they would warn.
_children: list[subprocess.Popen[bytes]] = []


class ServerProcess:
    """A running (or just ended) server.

    Args:
        pid: Process id.
        started: Start time in seconds since 1970, as the kernel reports it.
        popen: Present when this process is its parent, which then has to reap it.
    """

    def __init__(
        self, pid: int, started: float, popen: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid = pid
        self.started = started
        self._popen = popen

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        log_path: Path,
        cwd: Path,
        env: Mapping[str, str],
        account: Account | None = None,
        die_signal: int | None = None,
    ) -> ServerProcess:
        """Start ``argv`` (absolute program path) in a session of its own.

        Args:
            argv: Program and arguments.
            log_path: File that receives stdout and stderr, appended.
            cwd: Working folder, reachable for ``account``.
            env: The whole environment of the program.
            account: Run as this user; None means as ourselves.
            die_signal: Signal sent to the program when we end; None lets it outlive us.
        """
        spec = {
            "uid": account.uid if account else None,
            "gid": account.gid if account else None,
            "die_signal": die_signal,
            "parent": os.getpid(),
            "env": dict(env),
        }
        launcher = Path(__file__).with_name("launcher.py")
        command = [sys.executable, "-I", "-S", str(launcher), json.dumps(spec), *argv]
        log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            popen = (
                _spawner()
                .submit(
                    subprocess.Popen,
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log_fd,
                    stderr=log_fd,
                    cwd=cwd,
                    start_new_session=True,
                )
                .result()
            )
        finally:
            os.close(log_fd)
        _children[:] = [child for child in _children if child.poll() is None]
        _children.append(popen)
        # An unreaped child keeps its entry, so this cannot miss it.
        return cls(popen.pid, psutil.Process(popen.pid).create_time(), popen)

    @classmethod
    def find(cls, pid: int, started: float, marker: str) -> ServerProcess | None:
        """The recorded process if it still runs; None if it ended or its pid was reused.

        Args:
            pid: Recorded process id.
            started: Recorded start time, seconds since 1970.
            marker: Text that its command line holds, usually its data folder.
        """
        try:
            process = psutil.Process(pid)
            if abs(process.create_time() - started) > _SAME_START_SECONDS:
                return None
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            if marker not in _command_line(process):
                return None
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
        return cls(pid, started)

    def alive(self) -> bool:
        """Whether the process still runs; reaps it when it is our ended child."""
        if self._popen is not None:
            return self._popen.poll() is None
        try:
            process = psutil.Process(self.pid)
            return (
                abs(process.create_time() - self.started) <= _SAME_START_SECONDS
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.NoSuchProcess:
            return False

    def signal(self, number: int) -> bool:
        """Send a signal; False if the process has already ended."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def descendants(self) -> list[psutil.Process]:
        """Its living child processes, all generations."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def wait_gone(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for its end; whether it ended."""
        deadline = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def kill(self) -> None:
        """SIGKILL, then wait until it and its children are gone (10 s at most)."""
        children = self.descendants()
        if self.signal(signal.SIGKILL):
            self.wait_gone(10)
        _, stubborn = psutil.wait_procs(children, timeout=5)
        for child in stubborn:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(stubborn, timeout=5)

    def stop(self, number: int, timeout: float) -> bool:
        """Ask with signal ``number`` to end; whether that was enough within ``timeout`` s."""
        # A stopped process sees no signal but SIGKILL until it continues.
        self.resume()
        self.signal(number)
        return self.wait_gone(timeout)

    def pause(self) -> None:
        """SIGSTOP it and all its children: alive for the kernel, silent for everyone else."""
        self.signal(signal.SIGSTOP)
        for child in self.descendants():
            _signal_quietly(child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT it and all its children."""
        for child in self.descendants():
            _signal_quietly(child.pid, signal.SIGCONT)
        self.signal(signal.SIGCONT)


def _command_line(process: psutil.Process) -> str:
    """A living process's arguments, joined by NUL.

    Between two programs (exec) a process has none for a moment: that is waited out, else a
    server would be taken for gone just when it starts.
    """
    deadline = time.monotonic() + _EXEC_SECONDS
    while not (arguments := process.cmdline()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return "\0".join(arguments)


def _signal_quietly(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def size(path: Path) -> int:
    """The size of a log in bytes; 0 if there is none yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def tail(path: Path, words: Sequence[str], lines: int = 3, start: int = 0) -> str:
    """The last lines of a server's log that hold one of ``words``, for an error message.

    Args:
        path: The log.
        words: A line counts if it holds any of them.
        lines: How many lines at most.
        start: Offset in bytes from which on lines count.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(start, size(path) - 65536))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    found = [line.strip() for line in text.splitlines() if any(word in line for word in words)]
    return " | ".join(found[-lines:])
