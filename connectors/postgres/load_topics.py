"""The topics of loads: their names, made, compared, and removed when nobody needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cdc.control import LoadRecord
from cdc.log.admin import LogAdmin
from cdc.log.topics import kept_topic, table_topic
from cdc.names import TableId, spool_topic, topic_name
from cdc.states import ABANDONED, INTENDED
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.log_writer import LogWriter

KIND: Final = "chunks"
_AT_ONCE: Final = 200


def intended_load(
    settings: CaptureSettings,
    id: TableId,
    number: int,
    *,
    attempt: int = 0,
    hashed: bool = False,
    priority: int = 0,
) -> LoadRecord:
    """The record of a load of which nothing exists yet."""
    names = (settings.topic_prefix, settings.source, *id, number)
    return LoadRecord(
        id,
        number,
        topic_name(*names, hashed=hashed),
        None,
        KIND,
        None,
        INTENDED,
        slot=settings.slot,
        spool=spool_topic(*names, hashed=hashed),
        attempt=attempt,
        hashed=hashed,
        priority=priority,
    )


def topics_of(records: Iterable[LoadRecord]) -> list[str]:
    """Topics and spools of loads."""
    return [topic for record in records for topic in (record.topic, record.spool) if topic]


def create_topics(
    admin: LogAdmin,
    settings: CaptureSettings,
    loads: Sequence[tuple[LoadRecord, int, bool]],
    keep_alive: Callable[[], None],
) -> dict[str, str]:
    """Make the topics of loads, some at a time.

    Args:
        admin: Of the log.
        settings: Of the capture.
        loads: Each with the number of partitions of its topic, and whether its table has no key.
        keep_alive: Called in between.

    Returns:
        Topic to Kafka's id of it.

    Raises:
        LogError: ``topic_collision``, ``topic_exists``, ….
    """
    specs = []
    copies = settings.replication_factor
    for record, partitions, counted in loads:
        if counted:
            spec = kept_topic(record.topic, partitions=partitions, replication_factor=copies)
        else:
            spec = table_topic(
                record.topic,
                partitions=partitions,
                replication_factor=copies,
                history_ms=settings.history_ms,
            )
        specs += [spec, kept_topic(record.spool or "", replication_factor=copies)]
    found: dict[str, str] = {}
    for at in range(0, len(specs), _AT_ONCE):
        infos = admin.create_topics(specs[at : at + _AT_ONCE])
        found |= {name: info.topic_id for name, info in infos.items()}
        keep_alive()
    return found


def damaged(
    admin: LogAdmin, writer: LogWriter, records: Sequence[LoadRecord]
) -> list[tuple[LoadRecord, str]]:
    """Loads with a topic that is gone, another, or shorter than the frontier says."""
    there = admin.topic_ids(topics_of(records))
    offsets = admin.offsets_of({topic: found[1] for topic, found in there.items()})
    bad = []
    for record in records:
        for topic in topics_of([record]):
            ends = {p: found.end for p, found in offsets.get(topic, {}).items()}
            if (
                topic not in there
                or (topic == record.topic and there[topic][0] != record.topic_id)
                or any(ends.get(p, 0) < end for p, end in writer.ends_of(topic).items())
            ):
                bad.append((record, topic))
                break
    return bad


def remove_left_over(admin: LogAdmin, ended: Iterable[LoadRecord], used: set[str]) -> None:
    """Delete what loads that ended should not have left: a crash came before.

    Args:
        admin: Of the log.
        ended: Loads that are done or abandoned.
        used: Topics of tables, which stay.
    """
    names = []
    for record in ended:
        if record.spool is not None:
            names.append(record.spool)
            if record.state == ABANDONED:
                names.append(record.topic)
    admin.delete_topics(admin.topic_ids(name for name in names if name not in used))
