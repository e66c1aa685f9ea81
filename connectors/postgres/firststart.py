"""The first start of a source: intent, publication, slot, and the frontier where all begins.

What is about to be created is in control before it exists, so that a start which finds a
first start that did not end knows exactly what to take away (``leftovers.py``). The tables are
loaded beside the stream (``loads.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from cdc.control import (
    ControlState,
    SourceRecord,
    TableRecord,
    abandoned,
    control_key,
)
from cdc.errors import LogError
from cdc.failpoints import failpoint
from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.topics import control_topic, frontier_topic
from cdc.names import TableId
from cdc.position import frontier
from cdc.states import ADDED
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.client import ReplicationClient, SystemIdentity, connect_sql
from connectors.postgres.leftovers import check_leftovers, remove_leftovers
from connectors.postgres.load_topics import intended_load, topics_of
from connectors.postgres.log_writer import LogPosition, LogWriter
from connectors.postgres.matching import matching_tables, refused_record
from connectors.postgres.preflight import SourceFacts, preflight, refusal
from connectors.postgres.publication import create_publication

log = structlog.get_logger(__name__)

EPOCH = 0


@dataclass(frozen=True, slots=True)
class StartHooks:
    """What the first start tells and asks while it works.

    Args:
        check: Called about once a second; raises to give up.
        waiting_for_slot: Told how many seconds the server has been making the slot: it waits
            for all transactions that run.
    """

    check: Callable[[], None]
    waiting_for_slot: Callable[[float], None]


class FirstStart:
    """One attempt to begin a source.

    Args:
        settings: Of the capture.
        admin: Of the log.
        producer: Capture's, after ``init()``.
        hooks: Of the process around.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        admin: LogAdmin,
        producer: TransactionalProducer,
        hooks: StartHooks,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._producer = producer
        self._hooks = hooks
        self._control_end = 0

    def run(self, control: ControlState) -> None:
        """Begin; on return there is a slot and a frontier, and a load of each table is intended.

        Args:
            control: The source's control topic so far; empty at the very first start.

        Raises:
            SourceRefused: A check failed; nothing was created.
            CdcError: Anything else; the next start begins anew.
        """
        settings, check = self._settings, self._hooks.check
        unfinished = control.unfinished_loads()
        with (
            connect_sql(settings.conninfo) as connection,
            ReplicationClient(settings.conninfo) as client,
        ):
            matched = matching_tables(connection, settings)
            if unfinished:
                check_leftovers(connection, settings, unfinished, check)
            facts = preflight(
                connection,
                tables=settings.tables,
                publication=settings.publication,
                manage=settings.manage_publication,
                slot=settings.slot,
                own_slot=any(load.slot == settings.slot for load in unfinished),
                matched=matched,
                keys=settings.keys,
            )
            for notice in facts.notices:
                log.warning("notice", notice=notice)
            self._create_state_topics()
            if unfinished:
                remove_leftovers(connection, client, self._admin, settings, unfinished, check)
                self._write(abandoned(unfinished))
            identity = client.identify_system()
            tables = self._intend(facts, matched, control, identity)
            # Before the slot, so that the slot's first transaction already finds it.
            if facts.publication is None:
                create_publication(connection, settings.publication, tables)
            failpoint("after_publication")
            check()
            created = client.create_slot(
                settings.slot, export_snapshot=False, on_wait=self._hooks.waiting_for_slot
            )
            failpoint("after_slot_created")
            self._begin_log(identity, created.consistent_point)

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

    def _intend(
        self,
        facts: SourceFacts,
        matched: Sequence[TableId],
        control: ControlState,
        identity: SystemIdentity,
    ) -> list[TableId]:
        """Write what is about to be created, and a load of each table.

        Returns:
            The tables that are loaded.
        """
        settings = self._settings
        number = 1 + max((n for _, n in control.loads), default=0)
        tables = [id for id in (*settings.tables, *matched) if id not in facts.refused]
        loads = {id: intended_load(settings, id, number) for id in tables}
        # From the intent on, a topic of that name counts as ours.
        if taken := self._admin.topic_ids(topics_of(loads.values())):
            raise LogError(
                "topic_exists",
                f"topic {min(taken)} exists already: another log lives there",
                remedy="give log.topic_prefix in cdc.yaml, or delete the topic if nobody needs it",
            )
        refused = [
            refused_record(settings, id, None, refusal(findings, alone=True))
            for id, findings in facts.refused.items()
        ]
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
                load.id, ADDED, number, load.topic, None, settings.partitions
            ).to_key_value()
            for load in loads.values()
        ]
        records += [load.to_key_value() for load in loads.values()]
        records += [record.to_key_value() for record in refused]
        # Tables that an earlier attempt had, and cdc.yaml has no more.
        left = control.tables.keys() - loads.keys() - facts.refused.keys()
        records += [(control_key("table", *id), None) for id in sorted(left)]
        self._write(records)
        failpoint("after_intent")
        if not loads:
            log.warning("no table can be captured yet", source=settings.source)
        return tables

    def _begin_log(self, identity: SystemIdentity, point: int) -> None:
        """The first frontier: where the slot begins."""
        settings = self._settings
        LogWriter(
            self._producer,
            settings.control_topic,
            settings.frontier_topic,
            LogPosition(
                position=frontier(EPOCH, point),
                end_lsn=point,
                sysid=identity.sysid,
                timeline=identity.timeline,
                slot=settings.slot,
                last=None,
                max_commit_us=0,
                control_end=self._control_end,
                ends={},
            ),
        ).advance(point, None, [])
        failpoint("after_first_frontier")
        log.info("slot created", slot=settings.slot, consistent_point=f"{point:X}")

    def _write(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """One Kafka transaction of control records."""
        self._producer.begin()
        for key, value in records:
            self._producer.send(self._settings.control_topic, 0, key, value, None)
        self._control_end = self._producer.ends()[self._settings.control_topic][0]
        self._producer.commit()
