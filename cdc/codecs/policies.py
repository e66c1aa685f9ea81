"""What becomes of a value that a column's Delta type cannot hold: by column or type. Pure.

Delta's dates and timestamps know neither infinity, nor BC, nor years above 9999, and its
DECIMAL no NaN. What cdc.yaml says of them is put into the schema that readers use, so that all
of them (apply in the driver and in Spark, ``cdc query``) do the same.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdc.codecs.table import CODECS, DATE, NUMERIC, TIMESTAMP, TIMESTAMPTZ, is_simple_key
from cdc.names import TableId
from cdc.schema import ARRAY_POLICIES, CLAMP, ERROR, NULL, STRING, Column, TableSchema

#: What cdc.yaml may say of a type or column.
POLICIES: Final = (CLAMP, NULL, STRING, ERROR, *ARRAY_POLICIES)
_NAMES: Final = {
    **{codec.name: oid for oid, codec in CODECS.items()},
    "timestamp without time zone": TIMESTAMP,
    "timestamp with time zone": TIMESTAMPTZ,
}
#: Names of types in cdc.yaml, Postgres' long ones too: OID, and whether arrays of it.
TYPE_NAMES: Final = {
    **{name: (oid, False) for name, oid in _NAMES.items()},
    **{f"{name}[]": (oid, True) for name, oid in _NAMES.items()},
}
#: Postgres' text of what is out of range: infinite, BC, or of a year above 9999.
FAR_TEXT: Final = r"-?infinity|\d{4,7}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?(\+00)?( BC)?"
_FAR: Final = re.compile(FAR_TEXT, re.ASCII)
#: Of a numeric: no number.
NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_FIRST: Final = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
_LAST: Final = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
#: Lowest and highest value of a Delta type.
_ENDS: Final[dict[int, tuple[dt.date, dt.date]]] = {
    DATE: (dt.date.min, dt.date.max),
    TIMESTAMP: (_FIRST.replace(tzinfo=None), _LAST.replace(tzinfo=None)),
    TIMESTAMPTZ: (_FIRST, _LAST),
}


#: Types with values that their Delta types cannot hold.
LIMITED: Final = (DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC)


def is_before(text: str) -> bool:
    """Whether a text that is out of range lies before the range, not after it."""
    return text.startswith("-") or text.endswith("BC")


def ends(column: Column) -> tuple[dt.date, dt.date] | None:
    """Lowest and highest value of a date's or timestamp's Delta type; None for other columns."""
    wire = column.resolved
    return None if wire.array else _ENDS.get(wire.oid)


def in_range(column: Column, exact: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A converter like ``exact`` that replaces values out of range as the column's policy says.

    Args:
        column: A date, timestamp or DECIMAL, of the policy CLAMP or NULL.
        exact: Raises ValueError for values out of range.
    """
    limits = ends(column) if column.policy == CLAMP else None

    def convert(value: Any) -> Any:
        try:
            return exact(value)
        except ValueError:
            if not is_out_of_range(column, value):
                raise
            if limits is None:
                return None
            return limits[0 if is_before(value) else 1]

    return convert


def is_out_of_range(column: Column, value: Any) -> bool:
    """Whether the Delta type of a date, timestamp or DECIMAL cannot hold a JSON value of it."""
    if ends(column) is None:
        return value in NO_NUMBERS
    # A plain date is the only text of ten signs.
    return len(value) != 10 and _FAR.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class TypePolicies:
    """What cdc.yaml says of a table's columns.

    Args:
        types: Postgres' name of a type to policy.
        columns: Column name to policy; goes before what is said of its type.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    def put_into(self, schema: TableSchema) -> TableSchema:
        """What the derived table has of a schema, with the policy of every column."""
        by_type = {TYPE_NAMES[name]: policy for name, policy in self.types.items()}
        schema = schema.derived()
        return replace(
            schema,
            columns=tuple(self._with_policy(c, schema, by_type) for c in schema.columns),
            dropped=tuple(self._with_policy(c, schema, by_type) for c in schema.dropped),
        )

    def unknown_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """Columns that cdc.yaml names and the table does not have."""
        known = {c.name for c in (*schema.columns, *schema.dropped)}
        return tuple(sorted(self.columns.keys() - known))

    def not_arrays(self, schema: TableSchema) -> tuple[str, ...]:
        """Columns that cdc.yaml wants as ARRAY and that are no arrays: they stay what they are."""
        wanted = (c for c in schema.columns if self.columns.get(c.name) in ARRAY_POLICIES)
        return tuple(c.name for c in wanted if not c.resolved.array)

    def _with_policy(
        self, column: Column, schema: TableSchema, by_type: Mapping[tuple[int, bool], str]
    ) -> Column:
        wire = column.resolved
        policy = self.columns.get(column.name) or by_type.get((wire.oid, wire.array)) or CLAMP
        if policy in ARRAY_POLICIES and not wire.array:
            policy = CLAMP
        alone = schema.key == (column.name,)
        if alone and policy in (CLAMP, NULL) and is_simple_key(column):
            # Two keys would become one.
            policy = ERROR
        return column if policy == column.policy else replace(column, policy=policy)


#: What cdc.yaml says of each table of a source.
PoliciesOf = Callable[[TableId], TypePolicies]


def no_policies(table: TableId) -> TypePolicies:
    """Of a source of which cdc.yaml says nothing."""
    return TypePolicies()
