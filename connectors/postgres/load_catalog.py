"""What a load asks the source: definitions, the barrier's transaction ids, where WAL is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from cdc.errors import CdcError
from cdc.names import TableId
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.catalog import TableDefinition, current_wal_lsn, read_tables
from connectors.postgres.failures import mapped_errors
from connectors.postgres.preflight import not_published, refusal
from connectors.postgres.publication import inspect_publication, marks
from connectors.postgres.publishing import Publishing
from connectors.postgres.table_checks import Finding, table_problems

Connection = psycopg.Connection[tuple[Any, ...]]

_PAGE: Final = 8192
#: A WAL page begins with a header of 24 bytes, a segment's first page with one of 40.
_PAGE_HEADERS: Final = (24, 40)

_HOLDERS = """
    SELECT 'pid ' || pid FROM pg_stat_activity
    WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT 'prepared ' || quote_literal(gid) FROM pg_prepared_xacts
    LIMIT 10
"""


class LoadCatalog:
    """Asks over a plain connection.

    Args:
        connect: Gives the connection, as from ``SideConnection``.
        settings: Gives those of now.
    """

    def __init__(
        self, connect: Callable[[], Connection], settings: Callable[[], CaptureSettings]
    ) -> None:
        self._connect = connect
        self._settings = settings

    def definitions(
        self, tables: Sequence[TableId]
    ) -> tuple[dict[TableId, TableDefinition], dict[TableId, CdcError]]:
        """The tables as they are now.

        Returns:
            Those that can be loaded, and why the others cannot: gone, or not as a load needs it.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        settings, connection = self._settings(), self._connect()
        # Before the tables: if it is altered in between, that is found later.
        publication = inspect_publication(connection, settings.publication)
        found = {
            id: dataclasses.replace(
                table, types={**table.types, **marks(publication, id, table.ancestors)}
            )
            for id, table in read_tables(
                connection, tables, settings.publication, settings.keys
            ).items()
        }
        publishing = Publishing(
            settings.publication, publication, settings.manage_publication, settings.tables
        )
        refused = {}
        for id in tables:
            definition = found.get(id)
            if definition is None:
                problems = [
                    Finding(
                        "table_missing",
                        str(id),
                        "was dropped before it was loaded",
                        f"take {id} out of `tables` in cdc.yaml, or create it",
                        of_table=True,
                    )
                ]
            else:
                problems = list(table_problems(definition, publishing))
                if not publishing.managed and not publishing.has(id, definition.ancestors):
                    problems.append(not_published(id, settings.publication))
            if problems:
                refused[id] = refusal(problems, alone=True)
        return {id: found[id] for id in tables if id not in refused}, refused

    def next_xid(self) -> int:
        """A transaction that begins to write from now on has at least this id (64 bits)."""
        return self._number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")

    def oldest_xid(self) -> int:
        """Every transaction with a smaller id has ended, and what it did is visible."""
        return self._number("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")

    def holders(self) -> list[str]:
        """As ``holders``."""
        return holders(self._connect())

    def insert_lsn(self) -> int:
        """No commit record that was visible before lies at or above this LSN."""
        return reachable(current_wal_lsn(self._connect()))

    def flush_wal(self) -> None:
        """As ``flush_wal``."""
        flush_wal(self._connect())

    def _number(self, query: str) -> int:
        with mapped_errors("read the snapshot"):
            ((number,),) = self._connect().execute(query.encode()).fetchall()
        return int(number)


def holders(connection: Connection) -> list[str]:
    """Who has a transaction id now: server processes and prepared transactions.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    with mapped_errors("look for open transactions"):
        return [name for (name,) in connection.execute(_HOLDERS).fetchall()]


def flush_wal(connection: Connection) -> None:
    """Let the server flush its WAL, by a transaction that writes nothing but a message.

    A server on which nobody commits keeps the last records of others (pruned pages) to
    itself for up to 15 s, and a load that waits for them does, too.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    with mapped_errors("flush the WAL"), connection.transaction():
        connection.execute("SET TRANSACTION READ WRITE")
        connection.execute("SELECT pg_logical_emit_message(true, 'cdc', '')")


def reachable(lsn: int) -> int:
    """An insert position just behind a page's header is told as the page's begin elsewhere.

    A keepalive of a server that writes nothing more would stay below it for ever; no record
    lies in between.
    """
    return lsn - lsn % _PAGE if lsn % _PAGE in _PAGE_HEADERS else lsn


def pub_rel_of(definition: TableDefinition) -> dict[str, int] | None:
    """The table's place in the publication, as control records hold it."""
    if definition.pub_rel is None:
        return None
    oid, xmin = definition.pub_rel
    return {"oid": oid, "xmin": xmin}
