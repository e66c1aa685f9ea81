"""The tables of the source that match the patterns of cdc.yaml, and those that cannot be captured.

One that is given by its name refuses the start; one that only matches is set aside.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import psycopg
import structlog

from cdc.control import TableRecord
from cdc.errors import CdcError
from cdc.names import TableId
from cdc.position import ZERO
from cdc.states import ERRORED, RELOADS
from connectors.postgres.aside import set_aside
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.failures import mapped_errors

log = structlog.get_logger(__name__)

# What has rows, and is neither the server's own nor of one connection only. Views and the like
# are told apart later: whoever names a pattern is to be told what is not captured.
_RELATIONS = """
    SELECT n.nspname::text, c.relname::text, c.relkind = 'p', rn.nspname::text, root.relname::text,
           coalesce((SELECT pubviaroot FROM pg_catalog.pg_publication WHERE pubname = %s::text),
                    true)
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_class root
      ON c.relispartition AND root.oid = pg_partition_root(c.oid)::oid
    LEFT JOIN pg_catalog.pg_namespace rn ON rn.oid = root.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
      AND left(n.nspname, 3) <> 'pg_' AND n.nspname <> 'information_schema'
    ORDER BY 1, 2
"""


def matching_tables(
    connection: psycopg.Connection[Any], settings: CaptureSettings
) -> list[TableId]:
    """All that match and are not given by their names, whether they can be captured or not.

    Partitions are left out if the table is captured that they are a part of: their changes come
    under its name. If somebody else's publication sends them under their own names, only those
    between them and their table are.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    if not settings.patterns:
        return []
    with mapped_errors("look for tables that match the patterns of cdc.yaml"):
        rows = connection.execute(_RELATIONS, (settings.publication,)).fetchall()

    def meant(id: TableId) -> bool:
        return id in settings.tables or settings.matches(id)

    def left_out(partitioned: bool, root: TableId, via_root: bool) -> bool:
        if via_root or settings.manage_publication:
            return meant(root)
        return partitioned

    return [
        id
        for schema, name, partitioned, root_schema, root, via_root in rows
        if meant(id := TableId(schema, name))
        and id not in settings.tables
        and not (root and left_out(partitioned, TableId(root_schema, root), via_root))
    ]


def refused_record(
    settings: CaptureSettings,
    id: TableId,
    before: TableRecord | None,
    error: CdcError,
) -> TableRecord:
    """The record of a table that matches a pattern and cannot be captured as it is.

    It is tried again, like every table that was set aside.

    Args:
        settings: Of the capture.
        id: The table.
        before: Its record, if it was captured once.
        error: Why.
    """
    record = before or TableRecord(id, ERRORED, 0, "", None, settings.partitions)
    name, good = settings.name_of(id), record.last_good
    log.warning(
        "matches a pattern and cannot be captured",
        table=name,
        code=error.code,
        reason=error.message,
        remedy=error.remedy,
    )
    aside = set_aside(record, error, good or ZERO, name)
    return dataclasses.replace(aside, aside=RELOADS, last_good=good)
