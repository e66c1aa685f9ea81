"""The servers of the tests, behind one interface for local processes and for containers.

``CDC_TEST_STACK=containers`` takes containers, by default the local stack is used. Tests get
theirs by the fixtures in tests/conftest.py; what starts servers itself calls ``open_stack``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cdc.errors import EnvironmentProblem
from deploy.local.stack import LocalStack


class Server(Protocol):
    """What a test can do to a server. Its address stays the same over all of it."""

    def start(self) -> object:
        """Start it after ``stop`` or ``kill9``, and wait until it answers."""

    def stop(self) -> None:
        """End it cleanly."""

    def kill9(self) -> None:
        """End it as a crash would."""

    def restart(self) -> object:
        """Clean stop and start."""

    def pause(self) -> None:
        """Keep it alive and silent, its connections open."""

    def resume(self) -> None:
        """Undo ``pause``."""

    def wait_ready(self, timeout: float = 60) -> None:
        """Return when it answers a client."""

    def running(self) -> bool:
        """Whether its process lives."""


class Postgres(Server, Protocol):
    """A Postgres server with ``wal_level=logical``."""

    def conninfo(self, dbname: str = "postgres") -> dict[str, Any]:
        """Keywords for ``psycopg.connect``, as the superuser."""

    def create_database(self, name: str, options: str = "") -> dict[str, Any]:
        """Create a database; its ``conninfo``."""

    def drop_database(self, name: str) -> None:
        """Drop a database with its connections and its replication slots."""


class Kafka(Server, Protocol):
    """A broker without automatic topics, that takes messages of 16 MiB."""

    @property
    def bootstrap(self) -> str:
        """``host:port``."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One Postgres and one broker."""

    postgres: Postgres
    kafka: Kafka

    @property
    def bootstrap(self) -> str:
        """The broker's ``host:port``."""
        return self.kafka.bootstrap


@contextmanager
def open_stack(folder: Path) -> Iterator[Stack]:
    """Servers with data of their own, gone with all data at the end.

    Args:
        folder: An empty folder for what local servers keep.

    Raises:
        EnvironmentProblem: ``no_container_engine``, or why a local server does not start.
    """
    choice = os.environ.get("CDC_TEST_STACK", "local")
    if choice == "containers":
        # Only here: importing it takes a second.
        from tests.support.containers import open_containers

        with open_containers() as (postgres, kafka):
            yield Stack(postgres, kafka)
    elif choice == "local":
        # A kill of the server is tested, a loss of power is not: no fsync.
        local = LocalStack(folder, die_with_parent=True, fsync=False, quick_start=True)
        try:
            local.up()
            yield Stack(local.postgres, local.kafka)
        finally:
            local.destroy()
    else:
        raise EnvironmentProblem(
            "test_stack_unknown",
            f"CDC_TEST_STACK is {choice!r}",
            remedy="unset it, or set it to local or containers",
        )
