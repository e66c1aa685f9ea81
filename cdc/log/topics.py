"""What our topics look like: names are given, settings follow docs/formats.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_DAY_MS: Final = 24 * 60 * 60 * 1000
#: Tombstones stay readable for this long after compaction.
DELETE_RETENTION_MS: Final = 7 * _DAY_MS


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create.

    Args:
        name: Of the topic.
        partitions: Their number; pinned for the topic's life.
        replication_factor: Copies of each partition.
        configs: Topic settings in Kafka's spelling, all as text.
    """

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def table_topic(
    name: str,
    *,
    partitions: int,
    replication_factor: int,
    history_ms: int,
    max_message_bytes: int | None = None,
) -> TopicSpec:
    """The compacted topic of one load of a table.

    Args:
        name: Of the topic.
        partitions: Their number.
        replication_factor: Copies of each partition.
        history_ms: The history window: nothing younger than this is compacted, ms.
        max_message_bytes: Largest batch that the broker takes; the broker's default if None.
    """
    configs = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(history_ms),
        "delete.retention.ms": str(DELETE_RETENTION_MS),
        **_common(replication_factor),
    }
    if max_message_bytes is not None:
        configs["max.message.bytes"] = str(max_message_bytes)
    return TopicSpec(name, partitions, replication_factor, configs)


def kept_topic(name: str, *, partitions: int = 1, replication_factor: int) -> TopicSpec:
    """A topic that is kept whole until we delete it: a spool, a load of a table without a key."""
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        **_common(replication_factor),
    }
    return TopicSpec(name, partitions, replication_factor, configs)


def control_topic(name: str, *, replication_factor: int) -> TopicSpec:
    """The compacted topic of a source's control records."""
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": str(10 * 60 * 1000),
        "segment.bytes": str(16 * 1024 * 1024),
        "min.compaction.lag.ms": "0",
        "min.cleanable.dirty.ratio": "0.1",
        **_common(replication_factor),
    }
    return TopicSpec(name, 1, replication_factor, configs)


def frontier_topic(name: str, *, replication_factor: int, history_ms: int) -> TopicSpec:
    """The topic with one record per Kafka transaction, kept for the history and a day more."""
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(history_ms + _DAY_MS),
        # A cluster's default may limit bytes, which would cut the history short.
        "retention.bytes": "-1",
        **_common(replication_factor),
    }
    return TopicSpec(name, 1, replication_factor, configs)


def _common(replication_factor: int) -> dict[str, str]:
    return {
        # Retention and compaction count our broker's clock, not the producer's.
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "producer",
        # acks=all means little when one replica may be "all", or a stale one may lead.
        "min.insync.replicas": "2" if replication_factor >= 3 else "1",
        "unclean.leader.election.enable": "false",
    }
