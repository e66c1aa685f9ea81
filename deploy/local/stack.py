"""The local stack of one project: a broker and a Postgres, brought up and down together."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cdc.errors import EnvironmentProblem
from deploy.local.kafka import KafkaBroker
from deploy.local.package import shared_root
from deploy.local.postgres import PostgresServer
from deploy.local.state import StackState, read_json, write_json


@dataclass(frozen=True, slots=True)
class StackStatus:
    """What runs, and the record of it; ``state`` is None before the first ``up``."""

    state: StackState | None
    kafka_running: bool
    postgres_running: bool

    @property
    def running(self) -> bool:
        """Whether both servers run."""
        return self.kafka_running and self.postgres_running


class LocalStack:
    """The servers whose record is ``<state_dir>/state.json``.

    Args:
        state_dir: ``.cdc/local`` of a project, or any folder for a private stack.
        die_with_parent: End the servers when this process ends (tests).
        fsync: As in ``PostgresServer``.
        quick_start: As in ``KafkaBroker``.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        die_with_parent: bool = False,
        fsync: bool = True,
        quick_start: bool = False,
    ) -> None:
        self.state_dir = state_dir.resolve()
        self.state_path = self.state_dir / "state.json"
        self.kafka = KafkaBroker(
            self.state_dir / "kafka", die_with_parent=die_with_parent, quick_start=quick_start
        )
        self.postgres = PostgresServer(
            self._postgres_home(), die_with_parent=die_with_parent, fsync=fsync
        )

    def up(self) -> StackState:
        """Start what does not run, wait until both answer, and write the record.

        Raises:
            EnvironmentProblem: A server cannot be had or does not start.
        """
        with self._locked():
            if os.geteuid() == 0:
                self._claim_postgres_home()
            postgres_ran, kafka_ran = self.postgres.running(), self.kafka.running()
            try:
                postgres = self.postgres.start()
                state = StackState(self.kafka.start(), postgres)
                write_json(self.state_path, state.to_json())
            except BaseException:
                # A command that failed leaves nothing running that it started.
                if not postgres_ran:
                    self.postgres.stop()
                if not kafka_ran:
                    self.kafka.stop()
                raise
            return state

    def down(self) -> None:
        """Stop both servers cleanly; their data stays."""
        if not self.state_dir.is_dir():
            return
        with self._locked():
            self._stop()

    def status(self) -> StackStatus:
        """What is recorded and what runs."""
        record = read_json(self.state_path)
        return StackStatus(
            StackState.from_json(record, self.state_path) if record else None,
            kafka_running=self.kafka.running(),
            postgres_running=self.postgres.running(),
        )

    def destroy(self) -> None:
        """Stop both servers and remove all their data, also that outside ``state_dir``."""
        if not self.state_dir.is_dir():
            return
        with self._locked():
            self.kafka.destroy()
            self.postgres.destroy()
            shutil.rmtree(self.state_dir)

    def _stop(self) -> None:
        # Postgres first: its shutdown waits for walsenders, which may wait for the log.
        self.postgres.stop()
        self.kafka.stop()
        record = read_json(self.state_path)
        if record is not None:
            for server in ("kafka", "postgres"):
                record[server] |= {"pid": None, "started": None}
            write_json(self.state_path, record)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One command at a time on this stack."""
        try:
            self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise EnvironmentProblem(
                "local_state_forbidden",
                f"{self.state_dir} belongs to another user",
                remedy="use the local stack as the user who started it",
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _postgres_home(self) -> Path:
        if os.geteuid() != 0:
            return self.state_dir / "postgres"
        record = read_json(self.state_path)
        if record is not None:
            # The project folder may have been moved since.
            recorded = Path(StackState.from_json(record, self.state_path).postgres.home)
            if (recorded / "server.json").exists() and self._may_own(recorded):
                return recorded
        name = hashlib.sha256(os.fsencode(self.state_dir)).hexdigest()[:16]
        return shared_root() / name

    def _may_own(self, home: Path) -> bool:
        """Whether the data is ours: not that of a project that this one was copied from."""
        owner = read_json(home / "owner.json")
        if owner is None:
            return True
        other = Path(owner["state_dir"])
        return other == self.state_dir or not (other / "state.json").exists()

    def _claim_postgres_home(self) -> None:
        home = self.postgres.home
        for folder in (home.parent, home):
            folder.mkdir(exist_ok=True)
            if folder.stat().st_uid != 0:
                raise EnvironmentProblem(
                    "local_state_forbidden",
                    f"{folder} belongs to another user",
                    remedy=f"remove {folder}",
                )
            folder.chmod(0o711)
        write_json(home / "owner.json", {"v": 1, "state_dir": str(self.state_dir)})
