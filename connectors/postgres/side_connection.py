"""Capture's plain connection beside the stream: new columns, re-reads, and silent changes.

What the stream never tells is compared here, at start and every half minute: whether a table is
still the relation, and in the publication, that it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from cdc.names import TableId
from cdc.schema import TableSchema
from cdc.source_sql import FILLED, PARTITION_TREE, RELATION_FILE, VALUE_TYPES
from connectors.postgres.catalog import (
    KEYS,
    ON_WIRE,
    WIRE_TYPE,
    current_wal_lsn,
    wire_type,
)
from connectors.postgres.client import connect_sql
from connectors.postgres.drift import CatalogColumn
from connectors.postgres.failures import mapped_errors
from connectors.postgres.leaves import ANCESTORS, LEAVES_APART, NOT_IN_WAL, PLACE_ABOVE
from connectors.postgres.publication import PublicationInfo, inspect_publication, marks
from connectors.postgres.reread import Connection, Rereader, Values, Wanted, extend_xid
from connectors.postgres.silent import Partition, SeenColumn, TableIdentity

_RETRY_S = 0.02
#: The first that a server gives, which everybody sees.
_FIRST_XID = "3"
_SETTINGS = (
    b"SET lock_timeout = 2000; SET statement_timeout = 10000;"
    # Rows that a policy would hide must not pass for rows that are gone.
    b"SET row_security = off;"
    b"SET default_transaction_isolation = 'read committed';"
    b"SET default_transaction_read_only = on"
)

_FILE = RELATION_FILE.format(c="c")
# One statement, so one snapshot, for visibility and columns alike.
_ADDED = f"""
    SELECT pg_visible_in_snapshot(CAST(%s AS xid8), pg_current_snapshot()),
           a.attname::text, a.attnum::int, format_type(a.atttypid, a.atttypmod),
           a.atttypid::bigint, a.atttypmod, pg_get_expr(d.adbin, d.adrelid), {FILLED},
           {_FILE},
           {WIRE_TYPE.format(oid="a.atttypid", typmod="a.atttypmod")},
           EXISTS (SELECT FROM pg_attribute d
                   WHERE d.attrelid = a.attrelid AND d.attisdropped
                     AND d.attnum > %s AND d.attnum < a.attnum)
    FROM (SELECT) AS one
    LEFT JOIN pg_attribute a
      ON a.attrelid = %s::oid AND a.attname = ANY(%s::text[])
     AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
"""  # noqa: S608  (put together from constants)

_IDENTITIES = f"""
    SELECT c.oid::bigint, {_FILE},
           coalesce(p.oid, o.oid, b.oid)::bigint, coalesce(p.xmin, o.xmin, b.xmin)::text::bigint,
           n.nspname::text, c.relname::text, c.relpersistence = 'p', c.relreplident::text,
           (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
                                               {FILLED})
                             ORDER BY a.attnum)
            FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {ON_WIRE}),
           {VALUE_TYPES},
           CASE WHEN c.relreplident = 'f' THEN {KEYS} END,
           {NOT_IN_WAL},
           {LEAVES_APART},
           {ANCESTORS}
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_publication pub ON pub.pubname = %(publication)s::text
    LEFT JOIN pg_publication b ON b.oid = pub.oid AND b.puballtables
    LEFT JOIN pg_publication_rel p ON p.prrelid = c.oid AND p.prpubid = pub.oid
    LEFT JOIN LATERAL {PLACE_ABOVE} o ON true
    WHERE c.oid = ANY(%(relids)s::oid[])
"""  # noqa: S608  (put together from constants)


# The number that the tree makes up for, and its members.
_PARTITIONS = f"""
    SELECT {_FILE}, member.relid, member.filenode, member.since, member.made_there
    FROM pg_class c
    LEFT JOIN LATERAL {PARTITION_TREE.format(oid="c.oid")} member ON true
    WHERE c.oid = %s::oid
"""  # noqa: S608  (put together from constants)


class SideConnection:
    """Connects when first needed; one connection for all.

    Args:
        conninfo: libpq keywords of the source.
        publication: Its name.
        waiting: Called every few seconds while a query waits; may raise to give up.
    """

    def __init__(
        self, conninfo: Mapping[str, Any], publication: str, waiting: Callable[[], None]
    ) -> None:
        self._conninfo = conninfo
        self._publication = publication
        self._connection: Connection | None = None
        self._waiting = waiting
        self._rereader = Rereader(self.connected, waiting)
        #: Relation's file by relation id when its columns were last seen as we know them.
        self.filenodes: dict[int, int] = {}
        #: Highest number of a column, by relation id, that is no news.
        self.widths: dict[int, int] = {}

    def columns(
        self, schema: TableSchema, names: Sequence[str], xid: int | None
    ) -> dict[str, CatalogColumn]:
        """What the catalog says of these columns of a table now; unknown ones are left out.

        Waits until the transaction is visible: the stream can be ahead of what a query sees.

        Args:
            schema: The newest schema that we know.
            names: The columns.
            xid: The transaction with their first event, 32 bits; None: there is none, or it
                is long visible.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        width = self.widths.get(schema.relid) or max(
            column.id for column in (*schema.columns, *schema.dropped)
        )
        while True:
            connection = self.connected()
            with mapped_errors("read the columns of a table"):
                ((next_xid,),) = connection.execute(
                    "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
                ).fetchall()
                event = _FIRST_XID if xid is None else str(extend_xid(xid, next_xid))
                parameters = (event, width, schema.relid, list(names))
                rows = connection.execute(_ADDED, parameters).fetchall()
            if rows[0][0]:
                break
            self._waiting()
            time.sleep(_RETRY_S)
        known = self.filenodes.get(schema.relid)
        return {
            row[1]: CatalogColumn(
                number=row[2],
                type=row[3],
                type_oid=row[4],
                typmod=row[5],
                default=row[6],
                filled=row[7],
                rewritten=known is not None and row[8] != known,
                wire=wire_type(row[9]),
                unpublished=row[2] <= width,
                again=row[10],
            )
            for row in rows
            if row[1] is not None
        }

    def reread(
        self, schema: TableSchema, columns: Sequence[int], wanted: Sequence[Wanted]
    ) -> list[Values | None]:
        """As ``Rereader.read``."""
        return self._rereader.read(schema, columns, wanted)

    def identities(
        self, tables: Mapping[TableId, TableSchema], publication: PublicationInfo | None
    ) -> dict[TableId, TableIdentity]:
        """How the tables stand now, by relation id; dropped ones are left out.

        Args:
            tables: The newest schemas that we know.
            publication: As it was seen before this look.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        by_relid = {schema.relid: id for id, schema in tables.items()}
        with mapped_errors("compare the tables with what was recorded"):
            rows = (
                self.connected()
                .execute(_IDENTITIES, {"publication": self._publication, "relids": list(by_relid)})
                .fetchall()
            )
        return {
            by_relid[row[0]]: TableIdentity(
                filenode=row[1],
                pub_rel=None if row[2] is None else (row[2], row[3]),
                id=TableId(row[4], row[5]),
                logged=row[6],
                identity=row[7],
                columns=tuple(SeenColumn(*column) for column in row[8] or ()),
                types=(row[9] or {}) | marks(publication, TableId(row[4], row[5]), ancestors),
                keys=frozenset((frozenset(names), late) for names, late in row[10] or ()),
                not_in_wal=tuple(row[11]),
                leaves_apart=tuple(row[12]),
                ancestors=ancestors,
            )
            for row in rows
            for ancestors in (tuple(TableId(*name) for name in row[13]),)
        }

    def partitions(self, relid: int) -> tuple[int, dict[int, Partition]]:
        """The members of a partitioned table's tree, by relation id, without its root.

        Returns:
            The number that stands for them (``TableIdentity.filenode``), and the members.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        with mapped_errors("look at the partitions"):
            rows = self.connected().execute(_PARTITIONS, (relid,)).fetchall()
        members = {row[1]: Partition(*row[2:]) for row in rows if row[1] is not None}
        return (rows[0][0] if rows else 0), members

    def insert_lsn(self) -> int:
        """As ``catalog.current_wal_lsn``."""
        return current_wal_lsn(self.connected())

    def publication(self) -> PublicationInfo | None:
        """The publication as it is now.

        Raises:
            CdcError: As ``failures.server_error``.
        """
        return inspect_publication(self.connected(), self._publication)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The connection, made if there is none; read only, with short timeouts."""
        if self._connection is None:
            connection = connect_sql(self._conninfo)
            with mapped_errors("prepare a connection"):
                connection.execute(_SETTINGS)
            self._connection = connection
        return self._connection
