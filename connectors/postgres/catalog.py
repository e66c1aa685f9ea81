"""Tables as the catalogs describe them, read in one go and frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import psycopg

from cdc.names import TableId
from cdc.position import Position, parse_lsn
from cdc.schema import Column, TableSchema, WireType
from cdc.source_sql import RELATION_FILE, VALUE_TYPES
from connectors.postgres.failures import mapped_errors
from connectors.postgres.leaves import ANCESTORS, LEAVES_APART, NOT_IN_WAL, PLACE_ABOVE

_FULL_SENDS_GENERATED_VERSION: Final = 180_000
#: cdc.yaml gives no table a key of its own.
NO_KEYS: Final[Mapping[TableId, tuple[str, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A row of pg_attribute; dropped and system columns left out.

    Args:
        number: attnum, never reused within the table.
        name: attname.
        type_oid: atttypid.
        typmod: atttypmod, -1 for none.
        type: ``format_type``, such as ``numeric(10,2)``.
        not_null: No row has NULL in it.
        default: The default's expression as text, or None.
        generated: Computed by the server.
        on_wire: The publication has it: not if it is generated, unless it is asked to publish
            such columns (server version 18 on), and not if it lists others.
        wire: What a domain or an array comes to.
    """

    number: int
    name: str
    type_oid: int
    typmod: int
    type: str
    not_null: bool
    default: str | None
    generated: bool
    on_wire: bool = True
    wire: WireType | None = None


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """A primary key, or the index of REPLICA IDENTITY USING INDEX; columns in index order."""

    name: str
    columns: tuple[str, ...]
    deferrable: bool


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A relation that cdc.yaml names, as the catalogs describe it.

    Args:
        id: Schema and name.
        relid: pg_class.oid.
        filenode: Changes when the table is rewritten, see ``cdc.source_sql``; None for relations
            without storage.
        kind: pg_class.relkind.
        persistence: ``p`` permanent, ``u`` unlogged, ``t`` temporary.
        identity: pg_class.relreplident: d, n, f, i.
        columns: In the order of the wire, generated ones included.
        primary_key: None if there is none.
        identity_index: The index of identity ``i``; None otherwise, or if it was dropped.
        unique_indexes: Those over all rows and plain columns that are checked at once, small ones
            first.
        ancestors: Partitioned tables that it is a part of, the nearest first.
        children: It has tables that inherit from it.
        rows_hidden: Row security applies to our role.
        readable: Our role may SELECT all of it, its schema included.
        ours: Our role may publish it (owns it, or is a superuser).
        owner: Its owner.
        pub_rel: oid and xmin of its row in pg_publication_rel, for the publication asked about;
            of one FOR ALL TABLES its own.
        not_in_wal: Partitions whose changes are not in the WAL.
        leaves_apart: Partitions whose replica identity does not tell the rows' old keys.
        wanted_key: The key that cdc.yaml gives; None: it leaves that to us.
        types: As ``TableRecord.types``.
        row_filter: Condition of the rows that the publication has; None: it has all.
        full_sends_generated: Under identity FULL the server (18 on) refuses UPDATE and DELETE
            while a generated column is not published.
    """

    id: TableId
    relid: int
    filenode: int | None
    kind: str
    persistence: str
    identity: str
    columns: tuple[ColumnDefinition, ...]
    primary_key: IndexDefinition | None
    identity_index: IndexDefinition | None
    unique_indexes: tuple[IndexDefinition, ...]
    ancestors: tuple[TableId, ...]
    children: bool
    rows_hidden: bool
    readable: bool
    ours: bool
    owner: str
    pub_rel: tuple[int, int] | None
    not_in_wal: tuple[str, ...] = ()
    leaves_apart: tuple[str, ...] = ()
    wanted_key: tuple[str, ...] | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    row_filter: str | None = None
    full_sends_generated: bool = False

    @property
    def key(self) -> IndexDefinition | None:
        """The index whose columns are the record key: the identity's, else the primary key.

        With identity FULL the one that cdc.yaml wants, else the primary key, else a unique index.
        """
        if self.identity == "i":
            return self.identity_index
        if self.identity != "f":
            return self.primary_key
        if self.wanted_key is None:
            return self.primary_key or self._unique_key
        index = self.wanted_index
        if index is None or self.nullable(self.wanted_key):
            return None
        return dataclasses.replace(index, columns=self.wanted_key)

    @property
    def _unique_key(self) -> IndexDefinition | None:
        """A unique index that tells rows apart as a primary key does."""
        return next((i for i in self.unique_indexes if not self.nullable(i.columns)), None)

    @property
    def wanted_index(self) -> IndexDefinition | None:
        """A unique index on exactly the columns that cdc.yaml wants, which may be NULL."""
        for index in (self.primary_key, *self.unique_indexes):
            if index is not None and set(index.columns) == set(self.wanted_key or ()):
                return index
        return None

    def nullable(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of some columns that may be NULL."""
        return tuple(c.name for c in self.columns if c.name in names and not c.not_null)

    @property
    def published_columns(self) -> tuple[ColumnDefinition, ...]:
        """The columns on the wire, in its order."""
        return tuple(column for column in self.columns if column.on_wire)

    @property
    def generated_columns(self) -> tuple[str, ...]:
        """Names of the columns that are left out."""
        return tuple(c.name for c in self.columns if c.generated and not c.on_wire)

    def schema(self, load: int, valid_from: Position, version: int = 1) -> TableSchema:
        """The schema of a load; the table must have passed preflight (it has a key, or FULL)."""
        key = self.key
        if key is None and (self.identity != "f" or self.wanted_key is not None):
            raise ValueError(f"{self.id} has no key")
        return TableSchema(
            schema=self.id.schema,
            table=self.id.table,
            load=load,
            version=version,
            relid=self.relid,
            identity=self.identity,
            key=() if key is None else key.columns,
            columns=tuple(
                Column(
                    id=column.number,
                    name=column.name,
                    type_oid=column.type_oid,
                    typmod=column.typmod,
                    type=column.type,
                    not_null=column.not_null,
                    default=column.default,
                    wire=column.wire,
                )
                for column in self.published_columns
            ),
            valid_from=valid_from,
            partitioned=self.kind == "p",
            deferrable=key is not None and key.deferrable,
            chosen=self.identity == "f" and self.wanted_key is not None,
            row_filter=self.row_filter,
        )


# A domain is looked through to its base type, an array to the type of its elements; where an
# element is itself such an array (of a domain over arrays), its text is taken as it is. NULL
# where the column's own type says it all.
WIRE_TYPE = """
    (WITH RECURSIVE step AS (
         SELECT t.oid, {typmod}::int AS typmod, t.typtype, t.typbasetype, t.typtypmod, t.typelem,
                t.typoutput = 'pg_catalog.array_out'::regproc AS lists,
                false AS in_array, t.oid AS element, t.typdelim, 1 AS n
         FROM pg_catalog.pg_type t
         WHERE t.oid = {oid}
         UNION ALL
         SELECT t.oid,
                CASE WHEN s.typtype = 'd' AND s.typmod = -1 THEN s.typtypmod ELSE s.typmod END,
                t.typtype, t.typbasetype, t.typtypmod, t.typelem,
                t.typoutput = 'pg_catalog.array_out'::regproc,
                s.in_array OR s.typtype <> 'd',
                CASE WHEN s.typtype = 'd' THEN s.element ELSE t.oid END,
                CASE WHEN s.in_array THEN s.typdelim ELSE t.typdelim END,
                s.n + 1
         FROM step s
         JOIN pg_catalog.pg_type t
           ON t.oid = CASE WHEN s.typtype = 'd' THEN s.typbasetype
                           WHEN s.lists AND NOT s.in_array THEN s.typelem END
     )
     SELECT jsonb_build_array(CASE WHEN lists THEN element ELSE oid END::bigint, typmod,
                              in_array, typdelim)
     FROM step WHERE n > 1 ORDER BY n DESC LIMIT 1)
"""

# Of a column ``a`` of a table whose place in the publication ``pub`` is ``p``, if it has one of its
# own. Columns that newer servers add are read through JSON.
ON_WIRE = """
    (a.attgenerated = ''
     OR a.attgenerated = 's' AND (coalesce(to_jsonb(pub) ->> 'pubgencols', 'n') = 's'
                                  OR current_setting('server_version_num')::int >= 180000
                                     AND to_jsonb(p) ->> 'prattrs' IS NOT NULL))
    AND (to_jsonb(p) ->> 'prattrs' IS NULL
         OR to_jsonb(p) -> 'prattrs' @> to_jsonb(a.attnum))
"""

#: Names of the columns of an index ``i`` of a table ``c``, which are plain ones.
_INDEX_COLUMNS = """
    (SELECT jsonb_agg(a.attname ORDER BY k.n)
     FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
     JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
     WHERE k.n <= i.indnkeyatts)
"""

# Those of a table by which its rows can be told apart if its columns are not NULL.
_INDEXES = f"""
    (SELECT jsonb_agg(jsonb_build_array(ic.relname, {_INDEX_COLUMNS}, NOT i.indimmediate)
                      ORDER BY i.indnkeyatts, ic.relname)
     FROM pg_catalog.pg_index i
     JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
     WHERE i.indrelid = c.oid AND i.indisvalid AND {{which}})
"""  # noqa: S608  (put together from constants)

_UNIQUE = "i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL"

# From version 18 on, a constraint that old rows were not checked against counts as well.
_NOT_NULL = """
    (a.attnotnull AND NOT EXISTS (
         SELECT FROM pg_catalog.pg_constraint nn
         WHERE nn.conrelid = a.attrelid AND nn.contype = 'n' AND nn.conkey = ARRAY[a.attnum]
           AND NOT nn.convalidated))
"""

#: What can be the key of a table ``c`` of identity FULL: columns, and whether they are checked only
#: at the end of a transaction.
KEYS = f"""
    (SELECT jsonb_agg(jsonb_build_array({_INDEX_COLUMNS}, NOT i.indimmediate))
     FROM pg_catalog.pg_index i
     WHERE i.indrelid = c.oid AND i.indisvalid AND (i.indisprimary OR {_UNIQUE})
       AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n)
                       JOIN pg_catalog.pg_attribute a
                         ON a.attrelid = c.oid AND a.attnum = k.attnum
                       WHERE k.n <= i.indnkeyatts AND NOT {_NOT_NULL}))
"""  # noqa: S608  (put together from constants)

# What counts of it: a publication that has the whole schema, too, has all rows. The view is asked
# through JSON, because older servers have no such column.
_ROW_FILTER = """
    (SELECT to_jsonb(v) ->> 'rowfilter' FROM pg_catalog.pg_publication_tables v
     WHERE v.pubname = pub.pubname AND v.schemaname = n.nspname AND v.tablename = c.relname)
"""

_TABLES = f"""
    SELECT n.nspname::text, c.relname::text, c.oid::bigint,
           {RELATION_FILE.format(c="c")},
           c.relkind::text, c.relpersistence::text, c.relreplident::text,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(
                       a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,
                       format_type(a.atttypid, a.atttypmod), {_NOT_NULL},
                       CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
                       a.attgenerated <> '', {ON_WIRE},
                       {WIRE_TYPE.format(oid="a.atttypid", typmod="a.atttypmod")}
                       ) ORDER BY a.attnum), '[]')
            FROM pg_catalog.pg_attribute a
            LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
           {_INDEXES.format(which="i.indisprimary")},
           {_INDEXES.format(which="i.indisreplident")},
           {_INDEXES.format(which=_UNIQUE)},
           {ANCESTORS},
           EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid),
           row_security_active(c.oid),
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
           pg_has_role(c.relowner, 'USAGE'),
           pg_get_userbyid(c.relowner)::text,
           coalesce(p.oid, o.oid, b.oid)::bigint, coalesce(p.xmin, o.xmin, b.xmin)::text::bigint,
           {NOT_IN_WAL},
           {VALUE_TYPES},
           CASE WHEN to_jsonb(p) ->> 'prqual' IS NOT NULL THEN {_ROW_FILTER} END,
           {LEAVES_APART}
    FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS w(schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    LEFT JOIN pg_catalog.pg_publication pub ON pub.pubname = %(publication)s::text
    LEFT JOIN pg_catalog.pg_publication b ON b.oid = pub.oid AND b.puballtables
    LEFT JOIN pg_catalog.pg_publication_rel p ON p.prrelid = c.oid AND p.prpubid = pub.oid
    LEFT JOIN LATERAL {PLACE_ABOVE} o ON true
"""  # noqa: S608  (put together from constants)


def read_tables(
    connection: psycopg.Connection[Any],
    tables: Sequence[TableId],
    publication: str | None = None,
    keys: Mapping[TableId, tuple[str, ...]] = NO_KEYS,
) -> dict[TableId, TableDefinition]:
    """Read the definitions of these tables, by one snapshot; missing ones are left out.

    Args:
        connection: As from ``client.connect_sql`` (its settings shape the texts).
        tables: Schema and name, as Postgres spells them.
        publication: Whose membership rows to read.
        keys: That cdc.yaml gives.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    parameters = {
        "schemas": [table.schema for table in tables],
        "names": [table.table for table in tables],
        "publication": publication,
    }
    with mapped_errors("read the table definitions"):
        rows = connection.execute(_TABLES, parameters).fetchall()
    strict = connection.info.server_version >= _FULL_SENDS_GENERATED_VERSION
    definitions = (_definition(row, keys, strict) for row in rows)
    return {definition.id: definition for definition in definitions}


def current_wal_lsn(connection: psycopg.Connection[Any]) -> int:
    """Where the server inserts WAL now: beyond every commit that this connection can see.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    with mapped_errors("read the WAL position"):
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    if row is None:
        raise RuntimeError("no WAL position")
    return parse_lsn(row[0])


def _definition(
    row: tuple[Any, ...], keys: Mapping[TableId, tuple[str, ...]], full_sends_generated: bool
) -> TableDefinition:
    id = TableId(row[0], row[1])
    return TableDefinition(
        id=id,
        relid=row[2],
        filenode=row[3],
        kind=row[4],
        persistence=row[5],
        identity=row[6],
        columns=tuple(_column(column) for column in row[7]),
        primary_key=next(iter(_indexes(row[8])), None),
        identity_index=next(iter(_indexes(row[9])), None) if row[6] == "i" else None,
        unique_indexes=_indexes(row[10]),
        ancestors=tuple(TableId(*name) for name in row[11]),
        children=row[12],
        rows_hidden=row[13],
        readable=row[14],
        ours=row[15],
        owner=row[16],
        pub_rel=None if row[17] is None else (row[17], row[18]),
        not_in_wal=tuple(row[19]),
        wanted_key=keys.get(id),
        types=row[20] or {},
        row_filter=row[21],
        leaves_apart=tuple(row[22]),
        full_sends_generated=full_sends_generated,
    )


def _column(raw: list[Any]) -> ColumnDefinition:
    fields: tuple[Any, ...] = (*raw[:-1], wire_type(raw[-1]))
    return ColumnDefinition(*fields)


def wire_type(raw: list[Any] | None) -> WireType | None:
    """What ``WIRE_TYPE`` gives, as an object."""
    return None if raw is None else WireType(*raw)


def _indexes(raw: list[Any] | None) -> tuple[IndexDefinition, ...]:
    return tuple(
        IndexDefinition(name, tuple(columns), deferrable) for name, columns, deferrable in raw or ()
    )
