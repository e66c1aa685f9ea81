"""Whether capture may go on from where the log stands: named errors for every gap. Pure.

Each check answers one way in which history that the log needs may be gone (guarantee G3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from cdc.control import ControlState, TableRecord
from cdc.errors import CdcError, ConfigError, HistoryGap, LogError, SourceRefused, SourceStopped
from cdc.log.admin import PartitionOffsets
from cdc.names import TableId, quote_literal
from cdc.position import format_lsn
from cdc.states import ERRORED
from connectors.postgres import failures
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.client import SystemIdentity
from connectors.postgres.log_writer import LogPosition
from connectors.postgres.publication import PublicationInfo, differences, quote_table
from connectors.postgres.remedies import RELOAD_REMEDY, other_identity, whole_rows
from connectors.postgres.silent import TableIdentity
from connectors.postgres.slot import SlotInfo


def check_names(settings: CaptureSettings, control: ControlState) -> None:
    """cdc.yaml names the same slot, publication and database as at the first start.

    Raises:
        ConfigError: ``slot_changed``.
    """
    source = control.source
    if source is None:
        return
    for word, now, before in (
        ("slot", settings.slot, source.slot),
        ("publication", settings.publication, source.publication),
        ("database", settings.database, source.database),
    ):
        if now != before:
            raise ConfigError(
                "slot_changed",
                f"the {word} of source {settings.source} is {now} in cdc.yaml, and was {before} at "
                "its first start",
                remedy=f"name {before} again; or {RELOAD_REMEDY}",
            )


def check_errored(settings: CaptureSettings, control: ControlState) -> None:
    """Nothing stopped the source before; tables that were set aside do not.

    Raises:
        SourceStopped: ``source_errored``, with the reason and remedy that were recorded.
    """
    for record in control.tables.values():
        if record.state == ERRORED and record.aside is None:
            raise SourceStopped(
                "source_errored",
                f"the source is stopped: {record.reason}",
                table=settings.name_of(record.id),
                position=str(record.last_good) if record.last_good else None,
                remedy=record.remedy,
            )


def check_server(position: LogPosition, identity: SystemIdentity) -> None:
    """The server is the one that we know, and has not lost what we have read.

    Raises:
        HistoryGap: ``other_system``, ``timeline_changed``, ``server_behind``.
    """
    if identity.sysid != position.sysid:
        raise HistoryGap(
            "other_system",
            f"the server's system identifier is {identity.sysid}, the log was captured from "
            f"{position.sysid}: it is another database cluster",
            remedy=f"connect to the old one (cdc.yaml); or {RELOAD_REMEDY}",
        )
    if identity.timeline != position.timeline:
        raise HistoryGap(
            "timeline_changed",
            f"the server is on timeline {identity.timeline}, the log was captured on timeline "
            f"{position.timeline}: a standby was promoted or a backup restored",
            remedy=f"connect to the old server; or {RELOAD_REMEDY}",
        )
    if identity.wal_end < position.end_lsn:
        raise HistoryGap(
            "server_behind",
            f"the server's WAL ends at {format_lsn(identity.wal_end)}, the log was captured up to "
            f"{format_lsn(position.end_lsn)}: the server has lost what was read from it",
            position=str(position.position),
            remedy=RELOAD_REMEDY,
        )


def check_slot(settings: CaptureSettings, position: LogPosition, slot: SlotInfo | None) -> int:
    """The slot is ours, usable, free and not ahead; returns its confirmed_flush.

    Raises:
        HistoryGap: ``slot_missing``, ``slot_lost``, ``slot_ahead``.
        SourceRefused: ``slot_foreign``.
        SourceError: ``slot_active``.
    """
    if slot is None:
        raise _with_remedy(failures.slot_missing(settings.slot))
    if slot.plugin != "pgoutput" or slot.database != settings.database or slot.two_phase:
        raise foreign_slot(slot)
    if slot.lost or slot.confirmed_flush is None:
        raise _with_remedy(failures.slot_lost(settings.slot))
    if slot.active:
        raise failures.slot_active(settings.slot, slot.active_pid)
    if slot.confirmed_flush > position.end_lsn:
        raise HistoryGap(
            "slot_ahead",
            f"replication slot {slot.name!r} was confirmed up to "
            f"{format_lsn(slot.confirmed_flush)}, the log goes up to "
            f"{format_lsn(position.end_lsn)}: changes in between were given to somebody else",
            position=str(position.position),
            remedy=RELOAD_REMEDY,
        )
    return slot.confirmed_flush


def foreign_slot(slot: SlotInfo) -> SourceRefused:
    """The error for a slot of our name that cannot be ours."""
    return SourceRefused(
        "slot_foreign",
        f"replication slot {slot.name!r} is not ours: plugin {slot.plugin}, database "
        f"{slot.database}",
        remedy="name another slot in cdc.yaml, or drop it if nobody needs it: "
        f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});",
    )


def check_publication(
    settings: CaptureSettings,
    publication: PublicationInfo | None,
    tables: Iterable[TableId],
    partitioned: Iterable[TableId] = (),
) -> None:
    """The publication still publishes our tables, with everything; what else it has is not ours.

    That it was altered meanwhile is told table by table, see ``silent``; so is what one of
    somebody else does not send, see ``publishing``.

    Args:
        settings: Of the capture.
        publication: As it is now.
        tables: What it has to publish.
        partitioned: Those of the tables that are.

    Raises:
        HistoryGap: ``publication_missing``, ``publication_changed``.
    """
    wanted = frozenset(tables)
    if publication is None:
        raise HistoryGap(
            "publication_missing",
            f"the publication {settings.publication} is gone: changes made meanwhile may not be in "
            "the stream",
            remedy=RELOAD_REMEDY,
        )
    ours = dataclasses.replace(publication, tables=publication.tables & wanted)
    managed = settings.manage_publication
    if found := differences(ours, wanted, managed=managed, partitioned=partitioned):
        problems = "; ".join(problem for problem, _ in found)
        raise HistoryGap(
            "publication_changed",
            f"the publication {settings.publication} {problems}: changes made meanwhile may not "
            "be in the stream",
            remedy=RELOAD_REMEDY,
        )


def check_identity(
    settings: CaptureSettings, record: TableRecord, now: TableIdentity | None
) -> None:
    """A table is still the relation, and in the publication, that was recorded.

    Raises:
        SourceStopped: ``table_missing``, ``table_renamed``, ``unlogged``, ``unlogged_partition``,
            ``partition_identity``, ``publication_changed``.
    """
    id = record.id
    name = settings.name_of(id)
    if now is None:
        raise SourceStopped(
            "table_missing",
            "the table was dropped, or dropped and created again",
            table=name,
            remedy=f"take {id} out of cdc.yaml if it is not needed any more, or create it",
        )
    if now.id != id:
        raise SourceStopped(
            "table_renamed",
            f"the table was renamed to {now.id}",
            table=name,
            remedy=f"name {now.id} in cdc.yaml instead of {id}, or rename it back",
        )
    if not now.logged:
        # Only a publication that does not list it lets this happen.
        raise SourceStopped(
            "unlogged",
            "the table was made unlogged: its changes are not in the WAL",
            table=name,
            remedy=f"ALTER TABLE {quote_table(id)} SET LOGGED;",
        )
    if now.not_in_wal:
        raise SourceStopped(
            "unlogged_partition",
            f"changes of its partitions {', '.join(now.not_in_wal)} are not in the WAL: they are "
            "unlogged, or foreign tables",
            table=name,
            remedy=" ".join(f"ALTER TABLE {part} SET LOGGED;" for part in now.not_in_wal)
            + " or, of a foreign table, ALTER TABLE … DETACH PARTITION …",
        )
    if now.leaves_apart:
        raise SourceStopped(
            "partition_identity",
            other_identity(id, now.leaves_apart),
            table=name,
            remedy=whole_rows(now.leaves_apart),
        )
    before = record.pub_rel
    if before is not None and now.pub_rel != (before["oid"], before["xmin"]):
        raise SourceStopped(
            "publication_changed",
            "the table was taken out of the publication, or its place in it was changed: "
            "changes made meanwhile may not be in the stream",
            table=name,
            remedy=f"leave {id} in the publication {settings.publication}",
        )


def topic_gaps(
    settings: CaptureSettings,
    records: Mapping[TableId, TableRecord],
    position: LogPosition,
    topics: Mapping[str, tuple[str, int]],
    offsets: Mapping[str, Mapping[int, PartitionOffsets]],
) -> dict[TableId, SourceStopped]:
    """The tables whose topics are not those that were written, or lack what the frontier says.

    Args:
        settings: Of the capture.
        records: The tables.
        position: Where the log stands.
        topics: Id and partitions of the topics that are there.
        offsets: Of each of their partitions.

    Returns:
        Of each such table ``topic_missing``, ``topic_changed`` or ``log_truncated``.

    Raises:
        HistoryGap: The same, when it is so of all tables, and they are several: then it is the
            log that is not the one we know.
    """
    gaps = {}
    for id, record in records.items():
        damage = _damage_of_topic(record, position, topics, offsets)
        if damage is not None:
            code, reason = damage
            gaps[id] = SourceStopped(code, reason, table=settings.name_of(id))
    if len(gaps) == len(records) > 1:
        first = next(iter(gaps.values()))
        raise HistoryGap(
            first.code,
            f"of none of the {len(gaps)} tables the topic is as it was written; {first.message}",
            table=first.table,
            position=str(position.position),
            remedy=f"connect to the broker that has the log (cdc.yaml); or {RELOAD_REMEDY}",
        )
    return gaps


def _damage_of_topic(
    record: TableRecord,
    position: LogPosition,
    topics: Mapping[str, tuple[str, int]],
    offsets: Mapping[str, Mapping[int, PartitionOffsets]],
) -> tuple[str, str] | None:
    """Code and reason."""
    topic = record.topic
    there = topics.get(topic)
    if there is None:
        return "topic_missing", f"topic {topic} is gone"
    if there != (record.topic_id, record.partitions):
        return "topic_changed", (
            f"topic {topic} is not the one that was written: it was deleted and created again, or "
            "has other partitions"
        )
    for partition, end in position.ends.get(topic, {}).items():
        log_end = offsets[topic][partition].end
        if log_end < end:
            return "log_truncated", (
                f"topic {topic}[{partition}] ends at {log_end}, the frontier says {end}: records "
                "were lost"
            )
    return None


def frontier_lost(settings: CaptureSettings) -> LogError:
    """The error for a source whose tables are Ready and whose position nobody knows."""
    return LogError(
        "frontier_missing",
        f"neither {settings.frontier_topic} nor {settings.control_topic} says where source "
        f"{settings.source} stands",
        remedy=RELOAD_REMEDY,
    )


def _with_remedy(error: CdcError) -> CdcError:
    """The same error with the remedy that works in this version."""
    return type(error)(error.code, error.message, table=error.table, remedy=RELOAD_REMEDY)
