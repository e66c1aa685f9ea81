"""What becomes of a change of a table's form at the source: by kind of change and policy. Pure.

Names as in Flink CDC's ``schema.change.behavior``. Whatever is not followed in the stream is
loaded anew, stops the table, or is shown in ``cdc status``: nothing differs silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, Self

from cdc.names import TableId
from cdc.table_names import TablePattern

SchemaPolicy = Literal["evolve", "try_evolve", "lenient", "ignore", "exception"]


class Action(Enum):
    """What is done about a change."""

    #: The derived table gets the new column.
    FOLLOW = "follow"
    #: The log gets the new column, the derived table does not, before its next load.
    HIDE = "hide"
    #: The derived table keeps the column, NULL in every row.
    KEEP = "keep"
    #: The derived table loses the column.
    DROP = "drop"
    #: The table is set aside, and its next load begins by itself.
    RELOAD = "reload"
    #: The table is set aside until somebody asks for its next load.
    STOP = "stop"


class Kind(Enum):
    """Kinds of changes; ``KINDS`` has their codes in errors."""

    #: A column that is NULL in every row that was there.
    ADDED = "added"
    #: A column of which rows that were there hold values that no event tells.
    FILLED = "filled"
    DROPPED = "dropped"
    RENAMED = "renamed"
    #: Types, columns' places, keys, identities, labels of enums, the table's own name.
    OTHER = "other"


KINDS: Final[Mapping[str, Kind]] = {
    "column_added": Kind.ADDED,
    "column_default": Kind.FILLED,
    "table_rewritten": Kind.FILLED,
    "column_dropped": Kind.DROPPED,
    "column_renamed": Kind.RENAMED,
    **dict.fromkeys(
        (
            "column_retyped",
            "column_replaced",
            "column_unknown",
            "columns_changed",
            "reserved_column",
            "identity_changed",
            "key_changed",
            "key_lost",
            "type_changed",
            "values_rewritten",
            "table_renamed",
            "table_recreated",
            "table_missing",
        ),
        Kind.OTHER,
    ),
}

_TABLE: Final[Mapping[Kind, Mapping[str, Action]]] = {
    Kind.ADDED: {
        "lenient": Action.FOLLOW,
        "try_evolve": Action.FOLLOW,
        "evolve": Action.FOLLOW,
        "ignore": Action.HIDE,
    },
    Kind.FILLED: {"ignore": Action.HIDE, "evolve": Action.STOP},
    Kind.DROPPED: {
        "lenient": Action.KEEP,
        "try_evolve": Action.DROP,
        "evolve": Action.DROP,
        "ignore": Action.KEEP,
    },
    # Of the two names that it comes to, the new one is a new column.
    Kind.RENAMED: {"ignore": Action.HIDE, "evolve": Action.STOP},
    Kind.OTHER: {"evolve": Action.STOP},
}


def action_on(code: str, policy: SchemaPolicy) -> Action:
    """What is done about a change.

    Args:
        code: As errors name it. One that is no change of form (a gap in the table's history) is
            mended by a new load, whatever the policy.
        policy: Of the table.
    """
    kind = KINDS.get(code)
    if kind is None:
        return Action.RELOAD
    if policy == "exception":
        return Action.STOP
    return _TABLE[kind].get(policy, Action.RELOAD)


@dataclass(frozen=True, slots=True)
class SchemaPolicies:
    """What cdc.yaml says of a source's tables.

    Args:
        default: Of tables that have none of their own.
        tables: Names and patterns with a policy of their own; the first that matches counts.
    """

    default: SchemaPolicy = "lenient"
    tables: tuple[tuple[TablePattern, SchemaPolicy], ...] = ()

    def of(self, table: TableId) -> SchemaPolicy:
        """The policy of a table."""
        found = (policy for pattern, policy in self.tables if pattern.matches(table))
        return next(found, self.default)

    def to_json(self) -> dict[str, Any]:
        """As commands carry it."""
        tables = [[pattern.to_json(), policy] for pattern, policy in self.tables]
        return {"default": self.default, "tables": tables}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        tables = ((TablePattern.from_json(name), policy) for name, policy in raw["tables"])
        return cls(raw["default"], tuple(tables))
