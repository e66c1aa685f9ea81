"""An exported snapshot and its load request, as capture makes them for a first load."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.envelope import Origin
from cdc.load import LoadRequest, LoadTask
from cdc.log.admin import LogAdmin
from cdc.log.topics import table_topic
from cdc.names import TableId, topic_name
from cdc.position import Position, parse_lsn
from cdc.session_settings import OPTIONS
from connectors.postgres.catalog import read_tables

EPOCH = 3


@dataclass(frozen=True, slots=True)
class Export:
    """A snapshot that lives as long as the connection that exported it."""

    conninfo: dict[str, Any]
    slot: str
    snapshot: str
    consistent_point: int
    connection: psycopg.Connection[Any]

    def session(self) -> psycopg.Connection[Any]:
        """A session on the snapshot, with the settings of capture."""
        session = psycopg.connect(
            **self.conninfo, options=OPTIONS, client_encoding="UTF8", autocommit=True
        )
        session.execute("begin isolation level repeatable read read only")
        session.execute(f"set transaction snapshot '{self.snapshot}'")
        return session


@contextmanager
def exported(conninfo: dict[str, Any]) -> Iterator[Export]:
    """A temporary slot and the snapshot that it exports."""
    slot = f"s{uuid.uuid4().hex[:12]}"
    with psycopg.connect(**conninfo, replication="database", autocommit=True) as connection:
        command = f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        result = connection.pgconn.exec_(command.encode())
        values = [result.get_value(0, i) for i in range(3)]
        _, point, snapshot = [value.decode() for value in values if value is not None]
        yield Export(conninfo, slot, snapshot, parse_lsn(point), connection)


def load_request(
    export: Export,
    bootstrap: str,
    prefix: str,
    tables: list[str],
    *,
    partitions: int = 1,
    workers: int = 2,
    max_message_bytes: int | None = None,
    conninfo: dict[str, Any] | None = None,
) -> LoadRequest:
    """A request for tables of schema public, whose topics are created."""
    ids = [TableId("public", table) for table in tables]
    with export.session() as session:
        definitions = read_tables(session, ids)
        filenodes = dict(session.execute("select oid::bigint, relfilenode::bigint from pg_class"))
    tasks = tuple(
        LoadTask(
            schema=definitions[id].schema(1, Position(EPOCH, 0, 0)),
            filenode=filenodes[definitions[id].relid],
            topic=topic_name(prefix, "shop", *id, 1),
            partitions=partitions,
        )
        for id in ids
    )
    specs = [
        table_topic(
            task.topic,
            partitions=partitions,
            replication_factor=1,
            history_ms=86_400_000,
            max_message_bytes=max_message_bytes,
        )
        for task in tasks
    ]
    LogAdmin(bootstrap).create_topics(specs)
    return LoadRequest(
        project=f"p{uuid.uuid4().hex[:12]}",
        source="shop",
        conninfo=conninfo or export.conninfo,
        snapshot=export.snapshot,
        consistent_point=export.consistent_point,
        epoch=EPOCH,
        origin=Origin("0", "shop", str(export.conninfo["dbname"])),
        bootstrap_servers=bootstrap,
        log_options={},
        tasks=tasks,
        workers=workers,
    )
