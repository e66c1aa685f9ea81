"""What the catalog shows of a table that no event may ever tell. Pure.

An ALTER TABLE is told with the next event of the table only, and what it does to rows that are
there already is told by none. So the catalog is compared with the schema that the stream has
shown; a difference that is still there once the stream has passed the moment of the look is one
that no event has told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from cdc.control import TableRecord
from cdc.names import TableId
from cdc.schema import Column, TableSchema
from cdc.schema_policy import Action, SchemaPolicy, action_on
from connectors.postgres.messages import Identity, Relation, RelationColumn
from connectors.postgres.publication import OPTIONS, SCHEMA_LISTED

#: First letters of the parts in ``TableRecord.types``.
COLUMN, COMPOSITE, ENUM, WIDTH = "a", "c", "e", "w"
KEY, LARGE, NAMED = "k", "x", "t"

PUBLICATION_ALTERED = (
    "the publication, or the table's place in it, was altered: changes made meanwhile may not be "
    "in the stream"
)


@dataclass(frozen=True, slots=True)
class SeenColumn:
    """A column on the wire, as pg_attribute has it.

    Args:
        number: attnum.
        name: attname.
        type_oid: atttypid.
        typmod: atttypmod.
        filled: Rows from before the column hold a constant for it (atthasmissing).
    """

    number: int
    name: str
    type_oid: int
    typmod: int
    filled: bool


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """What tells whether a table is still the one that we know.

    Args:
        filenode: Changes with a rewrite or a truncate; see ``cdc.source_sql``.
        pub_rel: oid and xmin of its row in pg_publication_rel; None: not listed by itself.
        id: Its schema and name.
        logged: Its changes are in the WAL.
        identity: Its replica identity.
        columns: Its columns on the wire, in order.
        types: As ``TableRecord.types``.
        keys: Of identity FULL: columns by which rows can be told apart, and whether that is checked
            only at the end of a transaction.
        not_in_wal: Partitions whose changes are not in the WAL.
        leaves_apart: Partitions whose replica identity does not tell the rows' old keys.
        ancestors: Partitioned tables that it is a part of, the nearest first.
    """

    filenode: int
    pub_rel: tuple[int, int] | None
    id: TableId
    logged: bool
    identity: str
    columns: tuple[SeenColumn, ...]
    types: Mapping[str, str] = field(default_factory=dict)
    keys: frozenset[tuple[frozenset[str], bool]] = frozenset()
    not_in_wal: tuple[str, ...] = ()
    leaves_apart: tuple[str, ...] = ()
    ancestors: tuple[TableId, ...] = ()

    def has_columns_of(self, schema: TableSchema) -> bool:
        """Whether its columns are those of a schema, by name."""
        return {c.name for c in self.columns} == set(schema.column_names)

    def relation(self, schema: TableSchema) -> Relation:
        """What the stream would tell of it next; ``schema``: the newest that it has told."""
        whole = self.identity == "f"
        columns = tuple(
            RelationColumn(c.name, c.type_oid, c.typmod, whole or c.name in schema.key)
            for c in self.columns
        )
        return Relation(schema.relid, *self.id, cast(Identity, self.identity), columns)


@dataclass(frozen=True, slots=True)
class Partition:
    """A member of a partitioned table's tree, leaf or not.

    Args:
        filenode: Of a leaf; 0 of others.
        since: The transaction that made it a partition, 32 bits.
        made_there: It was created by the transaction that made it a partition, so there was no
            time for rows that no event told of.
    """

    filenode: int
    since: int
    made_there: bool


@dataclass(frozen=True, slots=True)
class SilentChange:
    """A difference between catalog and schema.

    Args:
        code: As the stream would name it.
        reason: What differs; holds no value.
        column: That is gone.
    """

    code: str
    reason: str
    column: Column | None = None


def silent_changes(
    schema: TableSchema, record: TableRecord, now: TableIdentity
) -> Iterator[SilentChange]:
    """What the stream has not told of a table.

    Args:
        schema: The newest one that the stream has shown.
        record: What was recorded of the table when it was last as it should be.
        now: How it is.
    """
    if now.identity != schema.identity:
        yield SilentChange("identity_changed", "the replica identity was changed")
    there = {column.name: column for column in now.columns}
    numbers = {column.number: column for column in now.columns}
    for column in schema.columns:
        seen = there.get(column.name)
        if column.hidden:
            continue  # nothing is derived from it
        if seen is None and column.name in schema.key:
            yield SilentChange("key_changed", f"column {column.name} of the key is gone")
        elif seen is None and schema.counted:
            yield SilentChange("columns_changed", f"column {column.name} is gone")
        elif seen is None:
            yield _gone(column, numbers.get(column.id))
        elif seen.number != column.id:
            yield SilentChange("column_replaced", f"column {column.name} is another one now")
        elif (seen.type_oid, seen.typmod) != (column.type_oid, column.typmod):
            yield SilentChange("column_retyped", f"the type of column {column.name} was changed")
    before = record.types or {}
    if schema.identity == "f" and schema.key:
        if not _holds_key(schema, now):
            yield SilentChange(
                "key_lost",
                f"the key ({', '.join(schema.key)}) is none any more: its index was dropped or "
                "altered, or a column may be NULL, so two rows can be the same in it",
            )
        elif not _held_key(schema, before, now):
            yield SilentChange(
                "key_lost",
                f"the index of the key ({', '.join(schema.key)}) was dropped and made again: two "
                "rows may have been the same in it meanwhile",
            )
    added = [seen for seen in now.columns if seen.name not in schema.column_names]
    yield from (_added(seen, width_of(record)) for seen in added)
    if added and record.filenode not in (None, now.filenode):
        yield SilentChange(
            "table_rewritten",
            "columns were added and the table rewritten: rows that were there before may hold a "
            "value that no event tells",
        )
    altered = any(before.get(part, text) != text for part, text in _of(COLUMN, now))
    if altered and record.filenode not in (None, now.filenode) and not schema.partitioned:
        yield SilentChange(
            "values_rewritten",
            "the table was rewritten and columns of it were altered: rows that were there before "
            "may hold other values (ALTER COLUMN … TYPE … USING), and no event tells",
        )
    if any(before.get(part, text) != text for part, text in _of(ENUM + COMPOSITE, now)):
        yield SilentChange(
            "type_changed",
            "a label of an enum was renamed, or the attributes of a composite type were changed: "
            "rows that were there before read otherwise now, and no event tells",
        )
    if before.get(LARGE, "0") not in ("0", now.types.get(LARGE)):
        # Neither VACUUM FULL nor TRUNCATE moves it; what rewrites for a new type is told above.
        yield SilentChange(
            "rows_not_in_wal",
            "the table was rewritten, as by SET UNLOGGED and SET LOGGED: changes made meanwhile "
            "are not in the WAL",
        )
    if published_otherwise(before, now):
        yield SilentChange("publication_changed", PUBLICATION_ALTERED)


def _gone(column: Column, now: SeenColumn | None) -> SilentChange:
    if now is None:
        return SilentChange("column_dropped", f"column {column.name} was dropped", column)
    return SilentChange("column_renamed", f"column {column.name} was renamed to {now.name}", column)


def _added(seen: SeenColumn, width: int) -> SilentChange:
    if seen.number <= width:
        return SilentChange("column_default", unpublished(seen.name))
    if seen.filled:
        return SilentChange(
            "column_default",
            f"column {seen.name} was added with a default: rows that were there before hold a "
            "value that no event tells",
        )
    return SilentChange("column_added", f"column {seen.name} was added")


def to_act_on(
    changes: Iterable[SilentChange], policy: SchemaPolicy
) -> tuple[SilentChange | None, list[Column]]:
    """What has to be done about changes that the stream has not told of.

    New columns that the derived table needs no value of are followed like those of an event.

    Args:
        changes: All of a table.
        policy: Of the table.

    Returns:
        The change that ends the table's topic, if one does; and the columns that are gone.
    """
    gone = []
    for change in changes:
        action = action_on(change.code, policy)
        if action in (Action.RELOAD, Action.STOP):
            return change, []
        if change.column is not None:
            gone.append(change.column)
    return None, gone


def unpublished(column: str) -> str:
    """What is wrong with a column that is new in the stream and not in the table."""
    return (
        f"column {column} was there before, and not published (it was a generated one): rows hold "
        "values of it that no event tells"
    )


def _held_key(schema: TableSchema, before: Mapping[str, str], now: TableIdentity) -> bool:
    """Whether an index that told the rows apart is still there."""
    indexes = {
        part
        for part, columns in before.items()
        if part.startswith(KEY) and set(json.loads(columns)) == set(schema.key)
    }
    # Nothing is known of them from a version that did not look.
    return not indexes or not indexes.isdisjoint(now.types)


def published_otherwise(before: Mapping[str, str], now: TableIdentity) -> bool:
    """Whether the table may have been without a publication, or with less of one."""
    # A table that has its place by its schema alone loses it by another schema or name.
    parts = (OPTIONS, SCHEMA_LISTED, NAMED) if SCHEMA_LISTED in before else (OPTIONS,)
    return any(part in before and now.types.get(part) != before[part] for part in parts)


def _holds_key(schema: TableSchema, now: TableIdentity) -> bool:
    """Whether rows are still told apart by the key, as early as they were."""
    return any(
        columns == set(schema.key) and late <= schema.deferrable for columns, late in now.keys
    )


def _of(kinds: str, now: TableIdentity) -> list[tuple[str, str]]:
    return [(part, text) for part, text in now.types.items() if part[0] in kinds]


def width_of(record: TableRecord) -> int:
    """Highest number of a column that is no news; 0 if nobody knows."""
    return int((record.types or {}).get(WIDTH, 0))


def known_types(schema: TableSchema, record: TableRecord, now: TableIdentity) -> dict[str, str]:
    """What to record as ``TableRecord.types`` of a table that is as the stream has told.

    Columns that came and went since the load, and were in no event so far, stay news: an
    event that has them may be on its way.
    """
    types = dict(now.types)
    if record.types and WIDTH in record.types:
        ids = (column.id for column in (*schema.columns, *schema.dropped) if not column.hidden)
        types[WIDTH] = str(max(width_of(record), *ids))
    return types


def silent_partitions(
    before: Mapping[int, Partition] | None, now: Mapping[int, Partition]
) -> SilentChange | None:
    """What happened to the partitions of a table, if rows may have come or gone with it.

    Args:
        before: Members of the tree by relation id when it was last as the log has it; None if
            nobody knows any more.
        now: Those that are there.
    """
    if before is not None:
        same = all(
            id in now and (now[id].filenode, now[id].since) == (old.filenode, old.since)
            for id, old in before.items()
        )
        if same and all(now[id].made_there for id in now.keys() - before.keys()):
            return None
    return SilentChange(
        "partitions_changed",
        "partitions were attached, detached, dropped, emptied or rewritten: rows may have joined "
        "or left the table without events",
    )
