"""The Postgres and the broker that are measured, and what they took themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.stack import LocalStack
from tests.support.usage import tree_seconds


@dataclass(frozen=True, slots=True)
class Servers:
    """One Postgres and one broker, both on this machine.

    Args:
        conninfo: libpq keywords of the database.
        bootstrap: ``host:port`` of the broker.
        postmaster: Process id of Postgres.
        broker: Process id of the broker.
        log_folder: Where the broker keeps the folders of its partitions.
    """

    conninfo: Mapping[str, Any]
    bootstrap: str
    postmaster: int
    broker: int
    log_folder: Path

    def postgres_seconds(self) -> float:
        """CPU seconds that Postgres took so far, with its sessions."""
        return tree_seconds(self.postmaster)

    def broker_seconds(self) -> float:
        """CPU seconds that the broker took so far."""
        return tree_seconds(self.broker)

    def topic_bytes(self, topic: str) -> int:
        """Bytes of a topic's records as they are stored, which is as they came: compressed."""
        return sum(path.stat().st_size for path in self.log_folder.glob(f"{topic}-*/*.log"))


@contextmanager
def own_servers() -> Iterator[Servers]:
    """Servers as ``cdc local up`` starts them, gone with all data at the end."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        stack = LocalStack(Path(folder), die_with_parent=True)
        try:
            state = stack.up()
            assert state.postgres.pid is not None
            assert state.kafka.pid is not None
            yield Servers(
                stack.postgres.create_database("bench"),
                stack.kafka.bootstrap,
                state.postgres.pid,
                state.kafka.pid,
                stack.kafka.data_dir,
            )
        finally:
            stack.destroy()
