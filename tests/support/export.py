"""Loads as capture begins them, for tests of the copier."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from cdc.envelope import Origin
from cdc.frontier import Ends
from cdc.load import (
    ChunkDone,
    ChunkPlan,
    Copier,
    CopierEvent,
    CopySettings,
    LoadFailed,
    LoadKey,
    LoadTask,
    Written,
)
from cdc.log.admin import LogAdmin
from cdc.log.topics import table_topic
from cdc.names import TableId, topic_name
from cdc.position import Position, parse_lsn
from connectors.postgres.catalog import read_tables

EPOCH = 3


def copy_settings(
    bootstrap: str,
    conninfo: Mapping[str, Any],
    *,
    workers: int = 2,
    rows_per_second: int | None = None,
) -> CopySettings:
    """Settings of a project that no other test has."""
    return CopySettings(
        project=f"p{uuid.uuid4().hex[:12]}",
        source="shop",
        conninfo=conninfo,
        epoch=EPOCH,
        origin=Origin("0", "shop", str(conninfo["dbname"])),
        bootstrap_servers=bootstrap,
        log_options={},
        workers=workers,
        rows_per_second=rows_per_second,
    )


def load_tasks(
    connection: psycopg.Connection[Any],
    bootstrap: str,
    prefix: str,
    tables: list[str],
    *,
    chunk_blocks: int | None = None,
    partitions: int = 1,
    max_message_bytes: int | None = None,
) -> list[LoadTask]:
    """Tasks for tables of schema public, whose topics are created.

    Args:
        connection: In autocommit mode.
        bootstrap: Of the log.
        prefix: Of the topics.
        tables: Their names.
        chunk_blocks: Blocks of a chunk; None: each table is one chunk.
        partitions: Of each topic.
        max_message_bytes: Of each topic; None: the broker's default.
    """
    ids = [TableId("public", table) for table in tables]
    definitions = read_tables(connection, ids)
    found = connection.execute(
        "select oid::bigint, pg_relation_size(oid) / current_setting('block_size')::int,"
        " pg_current_wal_lsn()::text"
        " from pg_class where oid = any(%s)",
        ([definitions[id].relid for id in ids],),
    ).fetchall()
    sizes = {relid: (blocks, parse_lsn(lsn)) for relid, blocks, lsn in found}
    tasks = []
    for id in ids:
        schema = definitions[id].schema(1, Position(EPOCH, 0, 0))
        blocks, lsn = sizes[schema.relid]
        filenode = definitions[id].filenode
        assert filenode is not None
        count = 1 if chunk_blocks is None else max(1, -(-blocks // chunk_blocks))
        plan = ChunkPlan.whole(chunk_blocks or max(blocks, 1), count)
        topic = topic_name(prefix, "shop", *id, 1)
        tasks.append(LoadTask(schema, filenode, topic, partitions, lsn, plan, tuple(range(count))))
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
    return tasks


@dataclass(slots=True)
class Copied:
    """What a copier has told.

    Attributes:
        rows: By load and chunk, of the chunks that are done.
        ends: Of all topics.
        failed: Loads that failed.
        events: All, in order.
    """

    rows: dict[LoadKey, dict[int, int]] = field(default_factory=dict)
    ends: Ends = field(default_factory=dict)
    failed: dict[LoadKey, LoadFailed] = field(default_factory=dict)
    events: list[CopierEvent] = field(default_factory=list)

    def take(self, event: CopierEvent) -> None:
        """Count an event; a chunk that is done twice, or after its load failed, is an error."""
        self.events.append(event)
        assert event.load not in self.failed
        match event:
            case ChunkDone(load, chunk, rows, ends):
                done = self.rows.setdefault(load, {})
                assert chunk not in done, "a chunk was done twice"
                done[chunk] = rows
                for topic, partitions in ends.items():
                    known = self.ends.setdefault(topic, {})
                    for partition, end in partitions.items():
                        known[partition] = max(end, known.get(partition, 0))
            case Written(load, chunk, _):
                assert chunk not in self.rows.get(load, {})
            case LoadFailed(load, _):
                self.failed[load] = event

    def total(self, task: LoadTask) -> int:
        """Rows of the chunks of a load that are done."""
        return sum(self.rows.get(task.key, {}).values())


def copy_until(
    copier: Copier,
    condition: Callable[[Copied], object] | None = None,
    *,
    copied: Copied | None = None,
    seconds: float = 60,
) -> Copied:
    """Poll until a condition holds, or (None) until nothing is left to do."""
    copied = copied or Copied()
    deadline = time.monotonic() + seconds
    while copier.busy if condition is None else not condition(copied):
        assert time.monotonic() < deadline, "waited in vain"
        for event in copier.poll(0.05):
            copied.take(event)
    return copied
