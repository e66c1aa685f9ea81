"""The tables as an exported snapshot sees them."""

from __future__ import annotations

from typing import Any

from cdc.errors import SourceError
from cdc.names import TableId, quote_literal
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.catalog import TableDefinition, read_tables
from connectors.postgres.client import connect_sql
from connectors.postgres.failures import mapped_errors
from connectors.postgres.preflight import SourceFacts


def read_in_snapshot(
    settings: CaptureSettings, facts: SourceFacts, snapshot: str
) -> tuple[dict[TableId, TableDefinition], dict[TableId, int]]:
    """Definitions and filenodes of the tables at the moment of the snapshot.

    Args:
        settings: Of the capture.
        facts: What the start checks saw.
        snapshot: Name of the exported snapshot.

    Raises:
        SourceError: ``table_changed``: not as the start checks saw it.
        CdcError: As ``failures.server_error``.
    """
    with connect_sql(settings.conninfo) as connection:
        with mapped_errors("import the snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}".encode())
        definitions = read_tables(connection, settings.tables, settings.publication)
        for id in settings.tables:
            before, now = facts.tables[id], definitions.get(id)
            if now is None or _shape(now) != _shape(before):
                raise SourceError(
                    "table_changed",
                    "the table was changed while the load began",
                    table=settings.name_of(id),
                    remedy="start again",
                )
        with mapped_errors("read the tables' files"):
            # Not pg_relation_filenode(), which looks past the snapshot.
            rows = connection.execute(
                "SELECT oid::bigint, relfilenode::bigint FROM pg_class WHERE oid = ANY(%s::oid[])",
                ([definition.relid for definition in definitions.values()],),
            ).fetchall()
    by_relid = {definition.relid: id for id, definition in definitions.items()}
    return definitions, {by_relid[relid]: filenode for relid, filenode in rows}


def pub_rel_of(definition: TableDefinition) -> dict[str, int] | None:
    """The table's place in the publication, as control records hold it."""
    if definition.pub_rel is None:
        return None
    oid, xmin = definition.pub_rel
    return {"oid": oid, "xmin": xmin}


def _shape(definition: TableDefinition) -> tuple[Any, ...]:
    """What has to be the same at the start checks and in the snapshot."""
    return (
        definition.relid,
        definition.kind,
        definition.identity,
        definition.key,
        definition.columns,
        definition.rows_hidden,
    )
