"""What one capture process is told: a source, its log and its tables. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdc.envelope import Origin
from cdc.load import CopySettings
from cdc.names import (
    TableId,
    capture_transactional_id,
    control_topic,
    frontier_topic,
)
from cdc.schema_policy import SchemaPolicies
from cdc.table_names import TablePattern


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Settings of a source's capture.

    Args:
        project: Name of the project.
        source: Name of the source.
        database: The source's database.
        conninfo: libpq keywords, password included.
        bootstrap_servers: Of the log.
        log_options: librdkafka's security options.
        topic_prefix: ``log.topic_prefix``.
        partitions: Of new table topics.
        replication_factor: Of new topics.
        history_ms: The history window, milliseconds.
        slot: The replication slot.
        publication: The publication.
        manage_publication: Whether we may create it.
        tables: The tables of cdc.yaml that are given by their names.
        patterns: Its other entries.
        keys: The keys that it gives.
        schema_policies: What is done about changes of tables' forms.
        workers: Snapshot workers.
        rows_per_second: Limit of all snapshot workers together; None: no limit.
        version: Of this program, for the envelopes.
    """

    project: str
    source: str
    database: str
    conninfo: Mapping[str, Any] = field(repr=False)
    bootstrap_servers: str
    log_options: Mapping[str, str] = field(repr=False)
    topic_prefix: str
    partitions: int
    replication_factor: int
    history_ms: int
    slot: str
    publication: str
    manage_publication: bool
    tables: tuple[TableId, ...]
    workers: int
    version: str
    rows_per_second: int | None = None
    patterns: tuple[TablePattern, ...] = ()
    keys: Mapping[TableId, tuple[str, ...]] = field(default_factory=dict)
    schema_policies: SchemaPolicies = field(default_factory=SchemaPolicies)

    def matches(self, table: TableId) -> bool:
        """Whether a table matches a pattern: the publication may hold it before we capture it."""
        return any(pattern.matches(table) for pattern in self.patterns)

    @property
    def control_topic(self) -> str:
        """The source's control topic."""
        return control_topic(self.topic_prefix, self.source)

    @property
    def frontier_topic(self) -> str:
        """The source's frontier topic."""
        return frontier_topic(self.topic_prefix, self.source)

    @property
    def transactional_id(self) -> str:
        """Of capture's producer."""
        return capture_transactional_id(self.project, self.source)

    @property
    def origin(self) -> Origin:
        """The unchanging part of every envelope's ``source``."""
        return Origin(self.version, self.source, self.database)

    def name_of(self, table: TableId) -> str:
        """``source.schema.table``, as errors name it."""
        return f"{self.source}.{table}"


def copy_settings(settings: CaptureSettings, epoch: int) -> CopySettings:
    """What the copier of a source's loads is told."""
    return CopySettings(
        project=settings.project,
        source=settings.source,
        conninfo=settings.conninfo,
        epoch=epoch,
        origin=settings.origin,
        bootstrap_servers=settings.bootstrap_servers,
        log_options=settings.log_options,
        workers=settings.workers,
        rows_per_second=settings.rows_per_second,
    )
