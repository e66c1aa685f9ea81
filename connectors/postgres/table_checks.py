"""Whether one table can be captured as it is. Pure; see ``preflight`` for the whole source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cdc.names import quote_ident
from connectors.postgres.catalog import TableDefinition
from connectors.postgres.publication import quote_table
from connectors.postgres.publishing import Publishing
from connectors.postgres.remedies import other_identity, whole_rows

#: Columns of our own in the lake begin so.
RESERVED_PREFIX = "_cdc_"
#: OIDs below are the server's own objects.
_FIRST_NORMAL_OID = 16384

#: (code, problem, remedy) → the finding of the table at hand.
_MakeFinding = Callable[[str, str, str], "Finding"]

_NOT_TABLES = {
    "v": ("view", "is a view: its changes are not replicated"),
    "m": ("materialized_view", "is a materialized view: its changes are not replicated"),
    "f": ("foreign_table", "is a foreign table: its changes are not replicated"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem.

    Args:
        code: Stable word.
        subject: The table, ``publication x``, ``slot x`` or ``server``.
        problem: What is wrong, to be read after the subject.
        remedy: The SQL or setting that mends it.
        environment: The server or a permission is at fault, not a table.
        of_table: The subject is a table.
    """

    code: str
    subject: str
    problem: str
    remedy: str
    environment: bool = False
    of_table: bool = False

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem} → {self.remedy}"


def table_problems(table: TableDefinition, publishing: Publishing) -> Iterator[Finding]:
    """What keeps one table from being captured; not whether it is in the publication."""
    subject = str(table.id)
    name = quote_table(table.id)

    def finding(code: str, problem: str, remedy: str) -> Finding:
        return Finding(code, subject, problem, remedy, of_table=True)

    leave_out = f"take {table.id} out of `tables` in cdc.yaml (out of a pattern, by `except`)"
    if table.kind not in ("r", "p"):
        code, problem = _NOT_TABLES.get(table.kind, ("not_a_table", "is not a table"))
        yield finding(code, problem, leave_out)
        return
    if table.relid < _FIRST_NORMAL_OID:
        yield finding("system_table", "is a table of the server itself", leave_out)
        return
    if table.persistence != "p":
        word = "unlogged" if table.persistence == "u" else "temporary"
        remedy = f"ALTER TABLE {name} SET LOGGED;" if word == "unlogged" else leave_out
        yield finding(word, f"is {word}: its changes are not in the WAL", remedy)
    if table.not_in_wal:
        parts = ", ".join(table.not_in_wal)
        remedy = " ".join(f"ALTER TABLE {part} SET LOGGED;" for part in table.not_in_wal)
        yield finding(
            "unlogged_partition",
            f"its partitions {parts} are unlogged, or foreign tables: their changes are not in the "
            "WAL",
            f"{remedy} or, of a foreign table, ALTER TABLE … DETACH PARTITION …",
        )
    if table.leaves_apart:
        yield finding(
            "partition_identity",
            other_identity(table.id, table.leaves_apart),
            whole_rows(table.leaves_apart),
        )
    partitioned = table.kind == "p"
    for found in publishing.problems(table.id, table.ancestors, partitioned=partitioned):
        yield finding(*found)
    if table.rows_hidden:
        yield finding(
            "row_security",
            "row security would hide rows from our role",
            f"ALTER ROLE … BYPASSRLS; or ALTER TABLE {name} DISABLE ROW LEVEL SECURITY;",
        )
    yield from key_problems(table)
    yield from _column_problems(table, finding)


def key_problems(table: TableDefinition) -> Iterator[Finding]:
    """What keeps a table's rows from being told apart as they have to be."""

    def finding(code: str, problem: str, remedy: str) -> Finding:
        return Finding(code, str(table.id), problem, remedy, of_table=True)

    name = quote_table(table.id)
    primary = table.primary_key
    add_key = f"ALTER TABLE {name} ADD PRIMARY KEY (…);"
    to_default = f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT;"
    if not primary:
        to_default = f"{add_key} {to_default}"
    if table.identity == "n":
        yield finding("identity_nothing", "its replica identity is NOTHING", to_default)
        return
    if table.identity == "i" and table.identity_index is None:
        yield finding(
            "identity_nothing",
            "the index of its replica identity was dropped, which leaves NOTHING",
            to_default,
        )
        return
    if table.wanted_key is not None and (wrong := list(_wanted_key_problems(table, finding))):
        yield from wrong
        return
    if table.identity == "f" and table.full_sends_generated and table.generated_columns:
        yield finding(
            "generated_not_published",
            "its replica identity is FULL and its generated columns "
            f"{', '.join(table.generated_columns)} are not replicated, so an UPDATE or DELETE of "
            "it would fail once it is published",
            f"{to_default} or, for stored ones, name a publication of yours in cdc.yaml "
            "(`manage: false`) with publish_generated_columns = stored",
        )
    key = table.key
    if table.identity == "f" and key is None:
        yield from _counted_problems(table, finding, add_key)
        return
    if key is None:
        yield finding(
            "no_key",
            "has no primary key and no other replica identity, so an UPDATE or DELETE of it "
            "would fail once it is published",
            f"{add_key} or, with a unique index on NOT NULL columns: "
            f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX …; or, for a table whose rows "
            f"can be equal: ALTER TABLE {name} REPLICA IDENTITY FULL;",
        )
        return
    if key.deferrable and table.identity != "f":
        listed = ", ".join(quote_ident(column) for column in key.columns)
        yield finding(
            "deferrable_key",
            f"its key {key.name} is deferrable, so it identifies no rows: an UPDATE or DELETE of "
            "it would fail once it is published",
            f"ALTER TABLE {name} REPLICA IDENTITY FULL; or ALTER TABLE {name} DROP CONSTRAINT "
            f"{quote_ident(key.name)}, ADD PRIMARY KEY ({listed});",
        )
    if absent := sorted(set(key.columns) - {column.name for column in table.published_columns}):
        yield finding(
            "key_not_published",
            f"its key has columns that are not replicated: {', '.join(absent)}",
            "choose a key of stored columns that the publication lists: " + add_key,
        )


def _wanted_key_problems(table: TableDefinition, finding: _MakeFinding) -> Iterator[Finding]:
    """What is wrong with the key that cdc.yaml gives."""
    name, wanted = quote_table(table.id), table.wanted_key or ()
    given = f"cdc.yaml gives it the key ({', '.join(wanted)})"
    if unknown := sorted(set(wanted) - {column.name for column in table.columns}):
        yield finding(
            "key_unknown",
            f"{given}, and it has no column {', '.join(unknown)}",
            f"correct `key` of {table.id} in cdc.yaml",
        )
        return
    if table.identity != "f":
        sent = table.key.columns if table.key is not None else ()
        if set(sent) != set(wanted):
            yield finding(
                "key_without_full",
                f"{given}, but its replica identity is "
                f"{'(' + ', '.join(sent) + ')' if sent else 'no index'}: an UPDATE or DELETE does "
                "not tell the old values of other columns",
                f"ALTER TABLE {name} REPLICA IDENTITY FULL; or take `key` of {table.id} out of "
                "cdc.yaml",
            )
        return
    why, remedy = [], []
    if nullable := table.nullable(wanted):
        why.append(f"{', '.join(nullable)} may be NULL")
        changes = ", ".join(f"ALTER {quote_ident(column)} SET NOT NULL" for column in nullable)
        remedy.append(f"ALTER TABLE {name} {changes};")
    if table.wanted_index is None:
        why.append("there is no valid unique index on exactly these columns, over all rows")
        listed = ", ".join(map(quote_ident, wanted))
        remedy.append(f"CREATE UNIQUE INDEX ON {name} ({listed});")
    if why:
        yield finding(
            "key_not_unique",
            f"{given}, of which two rows can be the same: {' and '.join(why)}",
            " ".join(remedy),
        )


def _counted_problems(
    table: TableDefinition, finding: _MakeFinding, add_key: str
) -> Iterator[Finding]:
    """Of a table of identity FULL without a key, whose rows are counted."""
    if table.kind == "p":
        yield finding(
            "full_without_key",
            "is partitioned, and has neither a primary key nor a unique index over NOT NULL "
            "columns",
            add_key,
        )
    absent = [c.name for c in table.columns if not c.on_wire and not c.generated]
    if absent or not table.published_columns:
        yield finding(
            "key_not_published",
            "has no key, so its whole row identifies it, and columns are not replicated: "
            + (", ".join(absent) or "it has none"),
            "let the publication list all of its columns, or " + add_key,
        )


def _column_problems(table: TableDefinition, finding: _MakeFinding) -> Iterator[Finding]:
    name = quote_table(table.id)
    for column in table.published_columns:
        quoted = quote_ident(column.name)
        if column.name.lower().startswith(RESERVED_PREFIX):
            yield finding(
                "reserved_column",
                f"the column {column.name} has a name that we keep for our own columns",
                f"ALTER TABLE {name} RENAME COLUMN {quoted} TO …;",
            )
