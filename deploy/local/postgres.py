"""A Postgres server of our own, ready for logical replication."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from cdc.errors import EnvironmentProblem
from deploy.local.binaries import Binaries, find_binaries
from deploy.local.databases import create_database, drop_database
from deploy.local.ports import choose_port, is_free
from deploy.local.process import Account, ServerProcess, server_account, size, tail
from deploy.local.ready import postgres_answers
from deploy.local.server import LocalServer
from deploy.local.settings import POSTGRES
from deploy.local.state import PostgresState, read_json, write_json

log = structlog.get_logger(__name__)

USER = "postgres"
DATABASE = "postgres"
_HOST = "127.0.0.1"
_SOCKET_PATH_LIMIT = 107


class PostgresServer(LocalServer[PostgresState]):
    """One cluster and the server on it, both in folders of their own.

    Args:
        home: Folder of this server: data/, run/ (socket), server.json, server.log. As root it
            has to lie where the server's account can reach it.
        die_with_parent: End the server when this process ends (tests); else it outlives us.
        fsync: False makes it faster; it still survives kill -9, but not a loss of power.
        binaries: Folder of the programs; None finds them.
    """

    kind = "postgres"
    title = "Postgres"

    def __init__(
        self,
        home: Path,
        *,
        die_with_parent: bool = False,
        fsync: bool = True,
        binaries: Binaries | None = None,
    ) -> None:
        super().__init__(home, home / "data", die_with_parent=die_with_parent)
        self._fsync = fsync
        self._binaries = binaries

    def start(self, timeout: float = 120) -> PostgresState:
        """Create the cluster if there is none, start the server, wait until it answers.

        Does nothing but wait when it already runs.

        Raises:
            EnvironmentProblem: ``postgres_start_failed``, ``postgres_not_ready``, ….
        """
        if self.running():
            self.wait_ready(timeout)
            return self.state()
        account = server_account()
        record = read_json(self._record_path) or {}
        if record.get("password") is None or not (self.data_dir / "PG_VERSION").exists():
            record = self._initialise(account)
        binaries = self._programs(int((self.data_dir / "PG_VERSION").read_text()))
        socket_dir = self._socket_dir(record, account)
        deadline = time.monotonic() + timeout
        port = record.get("port")
        while True:
            if port is None or not is_free(port):
                chosen = choose_port()
                if port is not None:
                    log.warning("postgres_port_taken", port=port, new_port=chosen)
                port = chosen
            record |= {
                "v": 1,
                "port": port,
                "socket_dir": str(socket_dir),
                "binaries": str(binaries.folder),
                "version": binaries.version,
                "account": account.name if account else None,
            }
            self._remove_stale_locks(socket_dir, port)
            self._log_start = size(self.log_path)
            self._process = self._spawn(binaries, account, port, socket_dir)
            record |= {"pid": self._process.pid, "started": self._process.started}
            write_json(self._record_path, record)
            try:
                self.wait_ready(max(1.0, deadline - time.monotonic()))
                return self.state()
            except EnvironmentProblem:
                # Both pass: another took the port just now; backends of a killed
                # postmaster have not ended yet.
                passing = ("could not bind", "still in use")
                retry = tail(self.log_path, passing, start=self._log_start)
                if self.running() or not retry or time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)

    def wait_ready(self, timeout: float = 60) -> None:
        """Return when a connection succeeds.

        Raises:
            EnvironmentProblem: ``postgres_start_failed`` (the server ended),
                ``postgres_not_ready`` (no answer within ``timeout`` seconds).
        """
        deadline = time.monotonic() + timeout
        while True:
            if not self.running():
                words = ("FATAL", "PANIC", "ERROR")
                said = tail(self.log_path, words, start=self._log_start)
                raise EnvironmentProblem(
                    "postgres_start_failed",
                    f"Postgres ended while starting: {said or 'no message'}",
                    remedy=f"read {self.log_path}",
                )
            if postgres_answers(self.conninfo()):
                return
            if time.monotonic() >= deadline:
                raise EnvironmentProblem(
                    "postgres_not_ready",
                    f"Postgres did not answer within {timeout:.0f} s",
                    remedy=f"read {self.log_path}",
                )
            time.sleep(0.05)

    def stop(self, timeout: float = 30) -> None:
        """End the server cleanly; after ``timeout`` seconds at once, without loss."""
        process = self._find()
        if process is not None and not process.stop(signal.SIGINT, timeout):
            # A client that does not read its replication stream can hold a fast shutdown up.
            log.warning("postgres_stop_forced", timeout=timeout)
            if not process.stop(signal.SIGQUIT, 10):
                process.kill()
        self._forget()

    def destroy(self) -> None:
        """Stop the server and remove all its folders."""
        socket_dir = (read_json(self._record_path) or {}).get("socket_dir")
        super().destroy()
        if socket_dir:
            shutil.rmtree(socket_dir, ignore_errors=True)

    def state(self) -> PostgresState:
        """Address, superuser and process.

        Raises:
            EnvironmentProblem: ``postgres_not_created``: it was never started.
        """
        record = self._record()
        process = self._find()
        return PostgresState(
            host=_HOST,
            port=record["port"],
            user=USER,
            password=record["password"],
            database=DATABASE,
            home=str(self.home),
            data_dir=str(self.data_dir),
            socket_dir=record["socket_dir"],
            binaries=record["binaries"],
            version=record["version"],
            account=record["account"],
            pid=process.pid if process else None,
            started=process.started if process else None,
        )

    def conninfo(self, dbname: str = DATABASE) -> dict[str, Any]:
        """Keywords for ``psycopg.connect``, over TCP as the superuser."""
        record = self._record()
        return {
            "host": _HOST,
            "port": record["port"],
            "user": USER,
            "password": record["password"],
            "dbname": dbname,
        }

    def create_database(self, name: str, options: str = "") -> dict[str, Any]:
        """Create a database; its ``conninfo``.

        Args:
            name: Unquoted name.
            options: The rest of CREATE DATABASE, for instance ``encoding 'latin1' template
                template0``.
        """
        create_database(self.conninfo(), name, options)
        return self.conninfo(name)

    def drop_database(self, name: str) -> None:
        """Drop a database with its connections and its replication slots."""
        drop_database(self.conninfo(), name)

    def _programs(self, version: int) -> Binaries:
        binaries = self._binaries or find_binaries()
        if binaries.version != version:
            raise EnvironmentProblem(
                "postgres_version_differs",
                f"{self.data_dir} was made by Postgres {version}, "
                f"but the programs found are {binaries.version}",
                remedy="set CDC_POSTGRES to the folder of the old programs, or cdc destroy",
            )
        return binaries

    def _initialise(self, account: Account | None) -> dict[str, Any]:
        binaries = self._binaries or find_binaries()
        for folder in (self.data_dir, self.home / "data.new"):
            shutil.rmtree(folder, ignore_errors=True)
        # The account only has to pass through home; data/ and run/ are its own, 0700.
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o711 if account else 0o700)
        password = secrets.token_urlsafe(24)
        new = self.home / "data.new"
        _make_private(new, account)
        fd, pwfile = tempfile.mkstemp(dir=self.home, prefix=".pw")
        try:
            with os.fdopen(fd, "w") as file:
                file.write(password + "\n")
            if account:
                os.chown(pwfile, account.uid, account.gid)
            process = ServerProcess.spawn(
                [
                    str(binaries.folder / "initdb"),
                    f"--pgdata={new}",
                    f"--username={USER}",
                    f"--pwfile={pwfile}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--no-locale",
                    "--no-sync",
                    "--no-instructions",
                ],
                log_path=self.log_path,
                cwd=Path("/"),
                env=_environment(binaries),
                account=account,
                die_signal=signal.SIGKILL,
            )
            ended = process.wait_gone(120)
            if not ended:
                process.kill()
        finally:
            os.unlink(pwfile)
        if not ended or not (new / "global" / "pg_control").exists():
            said = tail(self.log_path, ("error", "FATAL", "could not"))
            raise EnvironmentProblem(
                "postgres_init_failed",
                f"initdb failed: {said or 'no message'}",
                remedy=f"read {self.log_path}",
            )
        with (new / "postgresql.conf").open("a") as file:
            file.write("\ninclude 'cdc.conf'\n")
        record = {"v": 1, "password": password}
        write_json(self._record_path, record)
        # Last, so that a cluster without its password is never taken for a whole one.
        new.rename(self.data_dir)
        return record

    def _socket_dir(self, record: dict[str, Any], account: Account | None) -> Path:
        """A private folder whose socket path fits the kernel's limit."""
        socket_dir = self.home / "run"
        if len(str(socket_dir / ".s.PGSQL.65535").encode()) > _SOCKET_PATH_LIMIT:
            recorded = record.get("socket_dir")
            if recorded and Path(recorded).is_dir():
                socket_dir = Path(recorded)
            else:
                socket_dir = Path(tempfile.mkdtemp(prefix="cdc-pg-", dir="/tmp"))
        _make_private(socket_dir, account)
        return socket_dir

    def _remove_stale_locks(self, socket_dir: Path, port: int) -> None:
        """Remove lock files whose pid now belongs to something else.

        Postgres itself removes those of pids that no longer exist, but takes a reused pid for
        a running postmaster.
        """
        for path in (self.data_dir / "postmaster.pid", socket_dir / f".s.PGSQL.{port}.lock"):
            try:
                pid = int(path.read_text().splitlines()[0])
            except (FileNotFoundError, ValueError, IndexError):
                continue
            if not _is_postmaster(pid, self.data_dir):
                path.unlink()

    def _spawn(
        self, binaries: Binaries, account: Account | None, port: int, socket_dir: Path
    ) -> ServerProcess:
        settings = self.data_dir / "cdc.conf"
        values = POSTGRES | {
            "listen_addresses": _HOST,
            "port": str(port),
            "unix_socket_directories": str(socket_dir),
            "fsync": "on" if self._fsync else "off",
            "lc_messages": "C",
            "logging_collector": "off",
            "log_line_prefix": "%m [%p] ",
        }
        quoted = {name: value.replace("'", "''") for name, value in values.items()}
        lines = [f"{name} = '{value}'\n" for name, value in quoted.items()]
        settings.write_text("# Written at every start.\n" + "".join(lines))
        if account:
            os.chown(settings, account.uid, account.gid)
        return ServerProcess.spawn(
            [str(binaries.folder / "postgres"), "-D", str(self.data_dir)],
            log_path=self.log_path,
            cwd=self.data_dir,
            env=_environment(binaries),
            account=account,
            # SIGQUIT: ends at once, yet removes its shared memory, which SIGKILL would leak.
            die_signal=signal.SIGQUIT if self._die_with_parent else None,
        )


def _environment(binaries: Binaries) -> dict[str, str]:
    return {"PATH": f"{binaries.folder}:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def _make_private(folder: Path, account: Account | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if account:
        os.chown(folder, account.uid, account.gid)


def _is_postmaster(pid: int, data_dir: Path) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        # No /proc: ask ps, which every other Unix has.
        answer = subprocess.run(
            ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
        )
        command = answer.stdout
    return os.fsencode(data_dir) in command
