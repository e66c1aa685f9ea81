"""The publication: which tables' changes the server sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.names import TableId, quote_ident
from connectors.postgres.failures import mapped_errors


@dataclass(frozen=True, slots=True)
class PublicationInfo:
    """A publication as the server knows it.

    Args:
        name: Its name.
        oid: pg_publication.oid.
        xmin: Of its row in pg_publication: changes with every ALTER PUBLICATION of options.
        all_tables: FOR ALL TABLES.
        schemas: Of FOR TABLES IN SCHEMA (server version 15 on), with oid and xmin of their rows.
        via_root: publish_via_partition_root.
        generated: Stored generated columns are published (server version 18 on).
        operations: The published ones of insert, update, delete, truncate.
        tables: Those listed one by one.
        row_filtered: Tables with a WHERE.
        column_listed: Tables with a column list.
    """

    name: str
    oid: int
    xmin: int
    all_tables: bool
    schemas: Mapping[str, str]
    via_root: bool
    generated: bool
    operations: frozenset[str]
    tables: frozenset[TableId]
    row_filtered: frozenset[TableId]
    column_listed: frozenset[TableId]

    def publishes(self, table: TableId) -> bool:
        """Whether it has a table, by whatever way of listing it."""
        return self.all_tables or table.schema in self.schemas or table in self.tables


#: The parts of ``marks``.
OPTIONS, SCHEMA_LISTED = "p", "s"


def marks(
    publication: PublicationInfo | None, table: TableId, ancestors: Sequence[TableId]
) -> dict[str, str]:
    """What changes when a publication, or what a table has of it, was altered.

    Its own row in pg_publication_rel is looked at by itself. These are parts of
    ``TableRecord.types``.
    """
    if publication is None:
        return {}
    found = {OPTIONS: f"{publication.oid} {publication.xmin}"}
    for schema in (table.schema, *(id.schema for id in ancestors)):
        if schema in publication.schemas:
            found[SCHEMA_LISTED] = publication.schemas[schema]
            break
    return found


ALL_OPERATIONS = "insert, update, delete, truncate"
OPERATIONS = frozenset(ALL_OPERATIONS.split(", "))


def inspect_publication(connection: psycopg.Connection[Any], name: str) -> PublicationInfo | None:
    """Read a publication; None if there is none of that name.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    # Columns that newer servers add are read through JSON, so that one query serves all.
    head = """
        SELECT p.oid::bigint, p.xmin::text::bigint, p.puballtables, p.pubviaroot,
               coalesce(to_jsonb(p) ->> 'pubgencols', 'n'),
               p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate
        FROM pg_catalog.pg_publication p
        WHERE p.pubname = %s::text
    """
    listed = """
        SELECT n.nspname::text, c.relname::text,
               to_jsonb(r) ->> 'prqual' IS NOT NULL, to_jsonb(r) ->> 'prattrs' IS NOT NULL
        FROM pg_catalog.pg_publication_rel r
        JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prpubid = %s
    """
    with mapped_errors("read the publication"), connection.transaction():
        row = connection.execute(head, (name,)).fetchone()
        if row is None:
            return None
        tables = connection.execute(listed, (row[0],)).fetchall()
        schemas: list[tuple[str, str]] = []
        if connection.info.server_version >= 150000:
            schemas = connection.execute(
                """
                SELECT n.nspname::text, concat_ws(' ', p.oid, p.xmin)
                FROM pg_catalog.pg_publication_namespace p
                JOIN pg_catalog.pg_namespace n ON n.oid = p.pnnspid
                WHERE p.pnpubid = %s ORDER BY 1
                """,
                (row[0],),
            ).fetchall()
    published = zip(("insert", "update", "delete", "truncate"), row[5:9], strict=True)
    return PublicationInfo(
        name=name,
        oid=row[0],
        xmin=row[1],
        all_tables=row[2],
        schemas=dict(schemas),
        via_root=row[3],
        generated=row[4] == "s",
        operations=frozenset(operation for operation, on in published if on),
        tables=frozenset(TableId(t[0], t[1]) for t in tables),
        row_filtered=frozenset(TableId(t[0], t[1]) for t in tables if t[2]),
        column_listed=frozenset(TableId(t[0], t[1]) for t in tables if t[3]),
    )


def quote_table(table: TableId) -> str:
    """``"public"."orders"``."""
    return f"{quote_ident(table.schema)}.{quote_ident(table.table)}"


def members(tables: Iterable[TableId]) -> str:
    """Tables as ADD and DROP take them: each alone, without those that inherit from it.

    Partitions belong to their table all the same.
    """
    return ", ".join(f"ONLY {quote_table(table)}" for table in tables)


def create_sql(name: str, tables: Iterable[TableId]) -> str:
    """The statement that publishes exactly these tables."""
    listed = members(sorted(tables))
    what = f"FOR TABLE {listed} " if listed else ""
    return (
        f"CREATE PUBLICATION {quote_ident(name)} {what}"
        f"WITH (publish = '{ALL_OPERATIONS}', publish_via_partition_root = true)"
    )


def create_publication(
    connection: psycopg.Connection[Any], name: str, tables: Sequence[TableId]
) -> None:
    """Publish exactly these tables. Must be done before the slot is created.

    Takes SHARE UPDATE EXCLUSIVE on each table for a moment; writes go on.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    with mapped_errors("create the publication"):
        # The text is built from quoted names only.
        connection.execute(create_sql(name, tables).encode())


def drop_publication(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop the publication if it exists.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    with mapped_errors("drop the publication"):
        connection.execute(f"DROP PUBLICATION IF EXISTS {quote_ident(name)}".encode())


def differences(
    info: PublicationInfo,
    tables: Iterable[TableId],
    *,
    managed: bool,
    partitioned: Iterable[TableId] = (),
    more: Callable[[TableId], bool] = lambda id: False,
) -> list[tuple[str, str]]:
    """What keeps a publication from giving us our tables: (problem, SQL that mends it).

    Args:
        info: The publication.
        tables: The tables that it must publish.
        managed: It is ours, and so must publish all rows and columns, and nothing else;
            otherwise somebody else says what it publishes beyond them, which rows and columns,
            and how it lists them, and how it sends each is judged table by table
            (``publishing``).
        partitioned: Those that are partitioned.
        more: Whether it may publish another table all the same.
    """
    wanted = frozenset(tables)
    name = quote_ident(info.name)
    recreate = f"DROP PUBLICATION {name}; {create_sql(info.name, wanted)};"
    found: list[tuple[str, str]] = []
    if info.all_tables and managed:
        found.append(("publishes all tables of the database", recreate))
    elif info.schemas and managed:
        found.append((f"publishes whole schemas: {', '.join(info.schemas)}", recreate))
        return found
    if not info.all_tables:
        extra = sorted(id for id in info.tables - wanted if not more(id))
        if managed and extra:
            found.append(
                (
                    f"publishes tables that cdc.yaml does not list: {', '.join(map(str, extra))}",
                    f"ALTER PUBLICATION {name} DROP TABLE {members(extra)};",
                )
            )
        # Without whole schemas it has to list each.
        has = info.tables.__contains__ if managed else info.publishes
        if absent := sorted(table for table in wanted if not has(table)):
            found.append(
                (
                    f"does not publish {', '.join(map(str, absent))}",
                    f"ALTER PUBLICATION {name} ADD TABLE {members(absent)};",
                )
            )
    bent = sorted((info.row_filtered | info.column_listed) & wanted) if managed else []
    for table in bent:
        kind = "a row filter" if table in info.row_filtered else "a column list"
        alone = members([table])
        found.append(
            (
                f"has {kind} on {table}",
                f"ALTER PUBLICATION {name} DROP TABLE {alone}; "
                f"ALTER PUBLICATION {name} ADD TABLE {alone};",
            )
        )
    if info.operations != OPERATIONS and managed:
        found.append(
            (
                f"does not publish {', '.join(sorted(OPERATIONS - info.operations))}",
                f"ALTER PUBLICATION {name} SET (publish = '{ALL_OPERATIONS}');",
            )
        )
    if not info.via_root and managed and (roots := sorted(partitioned)):
        found.append(
            (
                f"does not publish {', '.join(map(str, roots))} under its own name, but each "
                "partition by itself",
                f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);",
            )
        )
    if info.generated and managed:
        found.append(
            (
                "publishes generated columns",
                f"ALTER PUBLICATION {name} SET (publish_generated_columns = none);",
            )
        )
    return found
