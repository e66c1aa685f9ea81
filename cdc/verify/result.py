"""What a verify found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from cdc.errors import CdcError
from cdc.position import Position, format_lsn

#: A table's outcome. Left out: not Ready, and nobody named it.
EQUAL, DIFFERENT, REFUSED, LEFT_OUT = "equal", "different", "refused", "left_out"

# A key's: only at the source, only in the derived table, with other values, more than once
# in the derived table. Of a row without a key: more often at the source, only in the derived
# table, more often there.
MISSING, EXTRA, CHANGED, DUPLICATED = "missing", "extra", "different", "duplicated"
KINDS: Final = (MISSING, EXTRA, CHANGED, DUPLICATED)


@dataclass(frozen=True, slots=True)
class Difference:
    """One key whose rows are not the same.

    Args:
        kind: One of ``KINDS``.
        key: Key column to value; of a table without a key, what tells the row.
        columns: Names of the columns that differ, where both sides have the row.
        source: Column to value at the source, if values were asked for.
        derived: Column to value in the derived table, likewise.
    """

    kind: str
    key: dict[str, Any]
    columns: tuple[str, ...] = ()
    source: dict[str, Any] | None = field(default=None, repr=False)
    derived: dict[str, Any] | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Its part of the command's result."""
        record: dict[str, Any] = {"kind": self.kind, "key": self.key}
        if self.columns:
            record["columns"] = list(self.columns)
        if self.source is not None or self.derived is not None:
            record |= {"source": self.source, "derived": self.derived}
        return record


@dataclass(frozen=True, slots=True)
class TableResult:
    """The outcome of one table.

    Args:
        table: ``source.schema.table``.
        outcome: equal, different, refused or left_out.
        error: Why it was not compared.
        position: What was compared: the source and the derived table as of this frontier.
        replica: Position of the replica that was read; None: everything came from the log.
        tail_keys: Keys that the log's tail changes above the replica.
        source_rows: Of the source at the position.
        derived_rows: Of the derived table at the position.
        ranges: Of keys, with rows on either side.
        differing_ranges: Those among them whose sums differ.
        differences: Keys, in order.
        complete: Whether ``differences`` holds all of them.
        notes: What was not compared, for people.
        seconds: That it took.
    """

    table: str
    outcome: str
    error: CdcError | None = None
    position: Position | None = None
    replica: Position | None = None
    tail_keys: int = 0
    source_rows: int = 0
    derived_rows: int = 0
    ranges: int = 0
    differing_ranges: int = 0
    differences: tuple[Difference, ...] = ()
    complete: bool = True
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """Kind to how many keys are listed."""
        found = dict.fromkeys(KINDS, 0)
        for difference in self.differences:
            found[difference.kind] += 1
        return found

    def to_json(self) -> dict[str, Any]:
        """Its part of the command's result."""
        if self.position is None:
            error = None if self.error is None else self.error.to_json()
            return {"table": self.table, "outcome": self.outcome, "error": error}
        return {
            "table": self.table,
            "outcome": self.outcome,
            "position": str(self.position),
            "lsn": format_lsn(self.position.lsn),
            "replica_position": None if self.replica is None else str(self.replica),
            "tail_keys": self.tail_keys,
            "source_rows": self.source_rows,
            "derived_rows": self.derived_rows,
            "ranges": self.ranges,
            "differing_ranges": self.differing_ranges,
            "listed": self.counts,
            "complete": self.complete,
            "differences": [difference.to_json() for difference in self.differences],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The outcomes of all tables, in the order of cdc.yaml."""

    tables: tuple[TableResult, ...]

    def of(self, *outcomes: str) -> list[TableResult]:
        """The tables with one of these outcomes."""
        return [table for table in self.tables if table.outcome in outcomes]

    def to_json(self) -> dict[str, Any]:
        """The ``result`` of the command's JSON envelope."""
        return {"tables": [table.to_json() for table in self.tables]}
