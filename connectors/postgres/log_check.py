"""Compares the topics of a source's log, as they are, with what was written to them."""

from __future__ import annotations

from collections.abc import Mapping

from cdc.control import TableRecord
from cdc.errors import SourceStopped
from cdc.log.admin import LogAdmin
from cdc.names import TableId
from connectors.postgres.aside import is_aside
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.log_writer import LogPosition
from connectors.postgres.startcheck import topic_gaps


def check_log(
    settings: CaptureSettings,
    admin: LogAdmin,
    tables: Mapping[TableId, TableRecord],
    position: LogPosition,
) -> tuple[int, dict[TableId, SourceStopped]]:
    """Check the topics that events go to directly.

    Args:
        settings: Of the capture.
        admin: Of the log.
        tables: That are captured.
        position: Where the log stands.

    Returns:
        The smallest ``max.message.bytes`` of all topics that are written, and the tables whose
        topics are not as they were written; see ``topic_gaps``.

    Raises:
        HistoryGap: That is so of all tables.
    """
    # What is being loaded can be loaded again (see ``Loads``), and so is what was set aside.
    records = {
        id: record
        for id, record in tables.items()
        if record.ready_from is not None and not is_aside(record, position.position)
    }
    topics = [record.topic for record in records.values()]
    infos = admin.describe_all([*topics, settings.control_topic, settings.frontier_topic])
    there = {name: (info.topic_id, info.partitions) for name, info in infos.items()}
    offsets = admin.offsets_of({topic: there[topic][1] for topic in topics if topic in there})
    gaps = topic_gaps(settings, records, position, there, offsets)
    return min(info.max_message_bytes for info in infos.values()), gaps
