"""What mends a source or a table that cannot be captured any further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.names import TableId

#: Of a source that is stopped.
RELOAD_REMEDY: Final = (
    "cdc stop, cdc destroy --source NAME (its slot, topics and derived tables), then cdc start "
    "loads the source anew"
)
#: Codes of tables that nothing makes one that can be captured: they can only be left out.
NEVER: Final = frozenset({"view", "materialized_view", "foreign_table", "partition", "not_a_table"})
#: By the code of an error of one table: what somebody has to do before a new load can help.
FIRST: Final[Mapping[str, str]] = {
    "record_too_large": "raise log message limits (max.message.bytes of broker and topic) or keep "
    "such values out of the table",
    "bad_value": "mend the value at the source",
    "schema_change": "see that who reads the derived table is ready for the change",
    "no_permission": "grant SELECT on the table to our role",
    "row_security": "give our role BYPASSRLS, or disable row level security on the table",
}


def other_identity(table: TableId, leaves: Sequence[str]) -> str:
    """What is wrong with partitions by whose replica identity old keys are not told."""
    return (
        f"partitions of {table} have another replica identity, which is not inherited: "
        f"{', '.join(leaves)}; the stream does not tell which row an UPDATE or DELETE of them is of"
    )


def whole_rows(leaves: Sequence[str]) -> str:
    """The SQL that mends it; names as Postgres spells them."""
    return " ".join(f"ALTER TABLE {leaf} REPLICA IDENTITY FULL;" for leaf in leaves)
