"""A server process of ours, whoever started it: found by its record, ended, paused, resumed."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from cdc.errors import EnvironmentProblem
from deploy.local.process import ServerProcess
from deploy.local.state import read_json, write_json

State = TypeVar("State")


class LocalServer(ABC, Generic[State]):
    """One server with a folder of its own, in which ``server.json`` tells of its process.

    Args:
        home: The folder.
        mark: A path on the command line that no other process has there.
        die_with_parent: End the server when this process ends (tests); else it outlives us.
    """

    #: Begins the codes of its errors.
    kind: ClassVar[str]
    #: How messages call it.
    title: ClassVar[str]

    def __init__(self, home: Path, mark: Path, *, die_with_parent: bool) -> None:
        self.home = home
        self.data_dir = home / "data"
        self.log_path = home / "server.log"
        self._record_path = home / "server.json"
        self._mark = mark
        self._die_with_parent = die_with_parent
        self._process: ServerProcess | None = None
        self._log_start = 0

    @abstractmethod
    def start(self, timeout: float = 120) -> State:
        """Start it, unless it runs, and wait until it answers."""

    @abstractmethod
    def stop(self, timeout: float = 30) -> None:
        """End it cleanly, and by force after ``timeout`` seconds."""

    def kill9(self) -> None:
        """SIGKILL it and wait until all its processes are gone."""
        process = self._find()
        if process is not None:
            process.kill()
        self._forget()

    def pause(self) -> None:
        """Stop all its processes without ending them; connections stay open and silent."""
        process = self._find()
        if process is not None:
            process.pause()

    def resume(self) -> None:
        """Undo ``pause``."""
        process = self._find()
        if process is not None:
            process.resume()

    def restart(self) -> State:
        """Clean stop and start; its ports stay."""
        self.stop()
        return self.start()

    def running(self) -> bool:
        """Whether its process lives."""
        return self._find() is not None

    def destroy(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    # --- inside ---

    def _record(self) -> dict[str, Any]:
        """What is known of a server that was started before.

        Raises:
            EnvironmentProblem: ``…_not_created``.
        """
        record = read_json(self._record_path)
        if record is None or "port" not in record:
            raise EnvironmentProblem(
                f"{self.kind}_not_created",
                f"there is no {self.title} in {self.home}",
                remedy="cdc local up",
            )
        return record

    def _find(self) -> ServerProcess | None:
        if self._process is not None:
            if self._process.alive():
                return self._process
            self._process = None
        record = read_json(self._record_path)
        if record is None or record.get("pid") is None:
            return None
        return ServerProcess.find(record["pid"], record["started"], str(self._mark))

    def _forget(self) -> None:
        self._process = None
        record = read_json(self._record_path)
        if record is not None:
            write_json(self._record_path, record | {"pid": None, "started": None})
