"""The first load of a source: intent, publication, topics, slot, copy, Ready.

What is about to be created is in control before it exists, so that a start which finds an
unfinished load knows exactly what to take away (``leftovers.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from cdc.control import (
    ABANDONED,
    COPYING,
    DONE,
    INTENDED,
    READY,
    SNAPSHOTTING,
    ControlState,
    LoadRecord,
    SourceRecord,
    TableRecord,
    control_key,
    schema_key_value,
)
from cdc.errors import LogError, SourceError
from cdc.failpoints import failpoint
from cdc.load import Loader, LoadProgress, LoadRequest, LoadTask
from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.topics import control_topic, frontier_topic, table_topic
from cdc.names import TableId, topic_name
from cdc.position import frontier, snapshot_position
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.client import (
    ReplicationClient,
    SystemIdentity,
    connect_sql,
)
from connectors.postgres.leftovers import check_leftovers, remove_leftovers
from connectors.postgres.log_writer import LogPosition, LogWriter
from connectors.postgres.preflight import SourceFacts, preflight
from connectors.postgres.publication import create_publication
from connectors.postgres.snapshot_catalog import pub_rel_of, read_in_snapshot

log = structlog.get_logger(__name__)

EPOCH = 0
_KIND = "exported"


@dataclass(frozen=True, slots=True)
class LoadHooks:
    """What the first load tells and asks while it works.

    Args:
        check: Called about once a second; raises to give up.
        progress: Told of copied rows.
        waiting_for_slot: Told how many seconds the server has been making the slot: it waits
            for all transactions that run.
    """

    check: Callable[[], None]
    progress: Callable[[LoadProgress], None]
    waiting_for_slot: Callable[[float], None]


class FirstLoad:
    """One attempt to load all tables of a source.

    Args:
        settings: Of the capture.
        admin: Of the log.
        producer: Capture's, after ``init()``.
        loader: Copies the tables.
        hooks: Of the process around.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        admin: LogAdmin,
        producer: TransactionalProducer,
        loader: Loader,
        hooks: LoadHooks,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._producer = producer
        self._loader = loader
        self._hooks = hooks

    def run(self, control: ControlState) -> None:
        """Load everything; on return all tables are Ready in the log.

        Args:
            control: The source's control topic so far; empty at the very first start.

        Raises:
            SourceRefused: A check failed; nothing was created.
            CdcError: Anything else; the load is unfinished and the next start begins anew.
        """
        settings, check = self._settings, self._hooks.check
        unfinished = control.unfinished_loads()
        with (
            connect_sql(settings.conninfo) as connection,
            ReplicationClient(settings.conninfo) as client,
        ):
            if unfinished:
                check_leftovers(connection, settings, unfinished, check)
            facts = preflight(
                connection,
                tables=settings.tables,
                publication=settings.publication,
                manage=settings.manage_publication,
                slot=settings.slot,
                own_slot=any(load.slot == settings.slot for load in unfinished),
            )
            for notice in facts.notices:
                log.warning("notice", notice=notice)
            self._create_state_topics()
            if unfinished:
                remove_leftovers(connection, client, self._admin, settings, unfinished, check)
                self._write(_abandoned(unfinished))
            identity = client.identify_system()
            loads = self._begin(connection, facts, control, identity)
            check()
            self._load(client, facts, identity, loads)

    # --- before the slot ---

    def _create_state_topics(self) -> None:
        settings, copies = self._settings, self._settings.replication_factor
        self._admin.create_topics(
            [
                control_topic(settings.control_topic, replication_factor=copies),
                frontier_topic(
                    settings.frontier_topic,
                    replication_factor=copies,
                    history_ms=settings.history_ms,
                ),
            ],
            accept_existing=True,
        )

    def _begin(
        self,
        connection: psycopg.Connection[Any],
        facts: SourceFacts,
        control: ControlState,
        identity: SystemIdentity,
    ) -> dict[TableId, LoadRecord]:
        """Write the intent, then create publication and topics."""
        settings = self._settings
        number = 1 + max((n for _, n in control.loads), default=0)
        loads = self._intend(facts, control, identity, number, hashed=False)
        if facts.publication is None:
            create_publication(connection, settings.publication, settings.tables)
        failpoint("after_publication")
        try:
            return self._create_topics(loads)
        except LogError as error:
            if error.code == "topic_collision":
                # None of these names was taken before: those that are there now are ours.
                self._admin.delete_topics(load.topic for load in loads.values())
            self._write(_abandoned(loads.values()))
            if error.code != "topic_collision":
                raise
        loads = self._intend(facts, control, identity, number + 1, hashed=True)
        return self._create_topics(loads)

    def _intend(
        self,
        facts: SourceFacts,
        control: ControlState,
        identity: SystemIdentity,
        number: int,
        *,
        hashed: bool,
    ) -> dict[TableId, LoadRecord]:
        settings = self._settings
        loads = {
            id: LoadRecord(
                id,
                number,
                topic_name(settings.topic_prefix, settings.source, *id, number, hashed=hashed),
                None,
                _KIND,
                None,
                INTENDED,
                slot=settings.slot,
            )
            for id in settings.tables
        }
        # From the intent on, a topic of that name counts as ours.
        if taken := self._admin.topic_ids(load.topic for load in loads.values()):
            raise LogError(
                "topic_exists",
                f"topic {min(taken)} exists already: another log lives there",
                remedy="give log.topic_prefix in cdc.yaml, or delete the topic if nobody needs it",
            )
        source = SourceRecord(
            identity.sysid,
            identity.timeline,
            settings.slot,
            settings.publication,
            EPOCH,
            facts.server.version,
            settings.database,
        )
        records: list[tuple[bytes, bytes | None]] = [source.to_key_value()]
        records += [
            TableRecord(
                load.id, SNAPSHOTTING, number, load.topic, None, settings.partitions
            ).to_key_value()
            for load in loads.values()
        ]
        records += [load.to_key_value() for load in loads.values()]
        # Tables that an earlier attempt had, and cdc.yaml has no more.
        records += [(control_key("table", *id), None) for id in control.tables if id not in loads]
        self._write(records)
        failpoint("after_intent")
        return loads

    def _create_topics(self, loads: Mapping[TableId, LoadRecord]) -> dict[TableId, LoadRecord]:
        settings = self._settings
        infos = self._admin.create_topics(
            [
                table_topic(
                    load.topic,
                    partitions=settings.partitions,
                    replication_factor=settings.replication_factor,
                    history_ms=settings.history_ms,
                )
                for load in loads.values()
            ]
        )
        failpoint("after_topics")
        return {
            id: dataclasses.replace(load, topic_id=infos[load.topic].topic_id)
            for id, load in loads.items()
        }

    # --- from the slot on ---

    def _load(
        self,
        client: ReplicationClient,
        facts: SourceFacts,
        identity: SystemIdentity,
        loads: dict[TableId, LoadRecord],
    ) -> None:
        settings = self._settings
        created = client.create_slot(
            settings.slot, export_snapshot=True, on_wait=self._hooks.waiting_for_slot
        )
        failpoint("after_slot_created")
        point, snapshot = created.consistent_point, created.snapshot
        if snapshot is None:
            raise SourceError("source_error", "the new slot has no exported snapshot")
        log.info("slot created", slot=settings.slot, consistent_point=f"{point:X}")
        definitions, filenodes = read_in_snapshot(settings, facts, snapshot)
        number = next(iter(loads.values())).load
        schemas = {
            id: definitions[id].schema(number, snapshot_position(EPOCH, point)) for id in loads
        }
        loads = {
            id: dataclasses.replace(load, state=COPYING, consistent_point=point)
            for id, load in loads.items()
        }
        tables = {
            id: TableRecord(
                id,
                SNAPSHOTTING,
                number,
                load.topic,
                load.topic_id,
                settings.partitions,
                relid=schemas[id].relid,
                filenode=filenodes[id],
                pub_rel=pub_rel_of(definitions[id]),
            )
            for id, load in loads.items()
        }
        self._write(
            [
                *(record.to_key_value() for record in tables.values()),
                *(load.to_key_value() for load in loads.values()),
                *(schema_key_value(schema) for schema in schemas.values()),
            ]
        )
        request = LoadRequest(
            project=settings.project,
            source=settings.source,
            conninfo=settings.conninfo,
            snapshot=snapshot,
            consistent_point=point,
            epoch=EPOCH,
            origin=settings.origin,
            bootstrap_servers=settings.bootstrap_servers,
            log_options=settings.log_options,
            tasks=tuple(
                LoadTask(schemas[id], filenodes[id], load.topic, settings.partitions)
                for id, load in loads.items()
            ),
            workers=settings.workers,
        )
        rows = self._loader(request, self._hooks.progress).rows
        failpoint("before_ready")
        self._write_ready(identity, tables, loads, rows, point)
        log.info("all tables are ready", tables=len(tables), rows=sum(rows.values()))

    def _write_ready(
        self,
        identity: SystemIdentity,
        tables: Mapping[TableId, TableRecord],
        loads: Mapping[TableId, LoadRecord],
        rows: Mapping[TableId, int],
        point: int,
    ) -> None:
        """Everything that makes the tables Ready, in one Kafka transaction."""
        settings = self._settings
        ready = frontier(EPOCH, point)
        offsets = self._admin.offsets_of(
            {load.topic: settings.partitions for load in loads.values()}
        )
        writer = LogWriter(
            self._producer,
            settings.control_topic,
            settings.frontier_topic,
            LogPosition(
                position=ready,
                end_lsn=point,
                sysid=identity.sysid,
                timeline=identity.timeline,
                slot=settings.slot,
                last=None,
                max_commit_us=0,
                control_end=0,
                # Nothing but the load was written to these topics, and it is complete.
                ends={
                    topic: {p: found.last_stable for p, found in parts.items()}
                    for topic, parts in offsets.items()
                },
            ),
        )
        writer.advance(
            point,
            None,
            [
                *(
                    dataclasses.replace(record, state=READY, ready_from=ready).to_key_value()
                    for record in tables.values()
                ),
                *(
                    dataclasses.replace(load, state=DONE, rows=rows[id]).to_key_value()
                    for id, load in loads.items()
                ),
            ],
        )

    def _write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """One Kafka transaction of control records."""
        self._producer.begin()
        for key, value in records:
            self._producer.send(self._settings.control_topic, 0, key, value, None)
        self._producer.ends()
        self._producer.commit()


def _abandoned(loads: Iterable[LoadRecord]) -> list[tuple[bytes, bytes | None]]:
    return [dataclasses.replace(load, state=ABANDONED).to_key_value() for load in loads]
