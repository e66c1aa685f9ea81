"""What is recorded about the servers, so that other processes find and recognise them.

``<state_dir>/state.json`` (0600) is what readers use::

    {"v": 1,
     "kafka": {"bootstrap_servers", "port", "controller_port", "cluster_id", "home", "pid",
               "started"},
     "postgres": {"host", "port", "user", "password", "database", "home", "data_dir",
                  "socket_dir", "binaries", "version", "account", "pid", "started"}}

``pid`` and ``started`` are null while a server is stopped. Times are seconds since 1970.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cdc.errors import EnvironmentProblem

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class KafkaState:
    """Address and identity of the broker."""

    bootstrap_servers: str
    port: int
    controller_port: int
    cluster_id: str
    home: str
    pid: int | None
    started: float | None


@dataclass(frozen=True, slots=True)
class PostgresState:
    """Address, identity and superuser of the Postgres server."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    home: str
    data_dir: str
    socket_dir: str
    binaries: str
    version: int
    account: str | None
    pid: int | None
    started: float | None


@dataclass(frozen=True, slots=True)
class StackState:
    """Both servers, as written to state.json."""

    kafka: KafkaState
    postgres: PostgresState

    def to_json(self) -> dict[str, Any]:
        """The object of state.json."""
        return {
            "v": STATE_VERSION,
            "kafka": asdict(self.kafka),
            "postgres": asdict(self.postgres),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any], path: Path) -> StackState:
        """Read the object of state.json; unknown fields are ignored.

        Raises:
            EnvironmentProblem: ``local_state_unreadable``.
        """
        try:
            if record["v"] != STATE_VERSION:
                raise KeyError("v")
            kafka, postgres = record["kafka"], record["postgres"]
            return cls(
                KafkaState(**{name: kafka[name] for name in KafkaState.__slots__}),
                PostgresState(**{name: postgres[name] for name in PostgresState.__slots__}),
            )
        except (KeyError, TypeError) as error:
            raise unreadable(path) from error


def unreadable(path: Path) -> EnvironmentProblem:
    """The error for a state file that is not as we write it."""
    return EnvironmentProblem(
        "local_state_unreadable",
        f"{path} is not a state file of this version",
        remedy="cdc destroy, then cdc local up",
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no file.

    Raises:
        EnvironmentProblem: ``local_state_unreadable``, ``local_state_forbidden``.
    """
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise EnvironmentProblem(
            "local_state_forbidden",
            f"{path} belongs to another user",
            remedy="use the local stack as the user who started it",
        ) from error
    except ValueError as error:
        raise unreadable(path) from error
    if not isinstance(record, dict):
        raise unreadable(path)
    return record


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Replace a file atomically by a JSON object that only we can read."""
    # mkstemp creates with mode 0600.
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
