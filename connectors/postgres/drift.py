"""What a Relation message says against the schema that we know: the same, more columns, or an end.

A load follows columns added at the end that are NULL in every row that was there before. Anything
else ends its topic before the transaction concerned (``SchemaDrift``), see ``aside``. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from cdc.position import Position
from cdc.schema import Column, TableSchema, WireType
from connectors.postgres.messages import Relation, RelationColumn

_RESERVED_PREFIX = "_cdc_"
_IDENTITIES = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "USING INDEX"}


class SchemaDrift(Exception):
    """The table changed in a way that this version cannot follow; no message holds a value."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """What the catalog says of a column that the stream shows for the first time.

    Args:
        number: attnum.
        type: ``format_type``.
        type_oid: atttypid.
        typmod: atttypmod.
        default: The default's expression, or None.
        filled: Rows from before the column hold a constant for it (atthasmissing).
        rewritten: The table was rewritten since its last check, as by a volatile default.
        wire: What a domain or an array comes to.
        again: A column that the stream has not shown was dropped before this one was added: it
            may have been of the same name, and the event of that one.
    """

    number: int
    type: str
    type_oid: int
    typmod: int
    default: str | None
    filled: bool
    rewritten: bool
    wire: WireType | None = None
    again: bool = False


def added_columns(known: TableSchema, relation: Relation) -> tuple[RelationColumn, ...]:
    """The columns that ``relation`` has beyond ``known``; () if it is the same.

    Raises:
        SchemaDrift: It differs otherwise.
    """
    name = (relation.namespace or "pg_catalog", relation.name)
    if name != (known.schema, known.table):
        raise SchemaDrift("table_renamed", f"the table was renamed to {name[0]}.{name[1]}")
    if relation.relid != known.relid:
        raise SchemaDrift("table_recreated", "the table was dropped and created again")
    if relation.identity != known.identity:
        raise SchemaDrift(
            "identity_changed",
            f"the replica identity was changed from {_IDENTITIES[known.identity]} to "
            f"{_IDENTITIES[relation.identity]}",
        )
    for i, column in enumerate(known.columns):
        found = relation.columns[i] if i < len(relation.columns) else None
        if found is None or found.name != column.name:
            raise _moved(known, relation, column)
        if (found.type_oid, found.typmod) != (column.type_oid, column.typmod):
            raise SchemaDrift(
                "column_retyped", f"the type of column {column.name} was changed from {column.type}"
            )
    in_identity = {c.name for c in relation.columns if c.in_key}
    if known.identity == "f":
        lost = set(known.key) - in_identity
    else:
        lost = set(known.key) ^ in_identity
    if lost:
        raise SchemaDrift(
            "key_changed", f"the key was changed: {', '.join(sorted(lost))} is not as before"
        )
    added = relation.columns[len(known.columns) :]
    taken = {c.name.lower() for c in known.columns}
    for extra in added:
        if extra.name.lower().startswith(_RESERVED_PREFIX):
            raise SchemaDrift(
                "reserved_column", f"the new column {extra.name} has a name that we keep"
            )
        if extra.name.lower() in taken:
            raise SchemaDrift(
                "ambiguous_column", f"the new column {extra.name} differs from another by case only"
            )
        taken.add(extra.name.lower())
    if added and known.counted:
        # Its rows are known by their whole JSON.
        raise SchemaDrift(
            "columns_changed", f"column {added[0].name} is new, in a table without a key"
        )
    return added


def _moved(known: TableSchema, relation: Relation, column: Column) -> SchemaDrift:
    """Dropped or renamed: the stream alone tells that the name is gone."""
    if column.name in {c.name for c in relation.columns}:
        return SchemaDrift("columns_changed", f"column {column.name} is at another place now")
    new = [c.name for c in relation.columns if c.name not in set(known.column_names)]
    if new and len(relation.columns) >= len(known.columns):
        return SchemaDrift(
            "column_renamed",
            f"column {column.name} was renamed or dropped; {', '.join(new)} is new",
        )
    return SchemaDrift("column_dropped", f"column {column.name} was dropped")


def next_schema(
    known: TableSchema,
    added: tuple[RelationColumn, ...],
    catalog: Mapping[str, AddedColumn],
    valid_from: Position,
) -> TableSchema:
    """The schema version with the added columns.

    Args:
        known: The newest version.
        added: From ``added_columns``.
        catalog: What the catalog says of them now, by name.
        valid_from: Position of the first event that has them.

    Raises:
        SchemaDrift: Rows from before may hold something else than NULL.
    """
    columns = list(known.columns)
    ids = {column.id for column in columns}
    for new in added:
        found = catalog.get(new.name)
        same_type = found and (found.type_oid, found.typmod) == (new.type_oid, new.typmod)
        if found is None or not same_type or found.again:
            raise SchemaDrift(
                "column_unknown",
                f"the new column {new.name} was dropped, renamed or retyped before it was captured",
            )
        if found.filled or found.default is not None:
            raise SchemaDrift(
                "column_default",
                f"column {new.name} was added with a default: rows that were there before hold a "
                "value that no event tells",
            )
        if found.rewritten:
            raise SchemaDrift(
                "table_rewritten",
                f"column {new.name} was added and the table rewritten: rows that were there before "
                "may hold a value that no event tells",
            )
        columns.append(
            Column(
                id=found.number if found.number not in ids else max(ids) + 1,
                name=new.name,
                type_oid=new.type_oid,
                typmod=new.typmod,
                type=found.type,
                # Rows of earlier versions have no value of it, whatever the catalog says.
                not_null=False,
                default=None,
                wire=found.wire,
            )
        )
        ids.add(columns[-1].id)
    return dataclasses.replace(
        known, version=known.version + 1, columns=tuple(columns), valid_from=valid_from
    )
