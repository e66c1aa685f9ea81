"""What a query gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cdc.position import Position


@dataclass(frozen=True, slots=True)
class AsOf:
    """The frontier that all tables of a source stand at in one answer.

    Args:
        position: F, exclusive.
        last_commit_us: Highest commit time below F, µs since 1970 UTC.
        age_s: Seconds from when the log was complete up to F until the answer.
        last_good: Whether an Errored table held it back, as asked.
    """

    position: Position
    last_commit_us: int
    age_s: float
    last_good: bool = False


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An exact answer.

    Args:
        columns: Names, which may repeat.
        types: DuckDB's types.
        rows: Python values; see ``cdc.query.engine.run``.
        as_of: Source name to its frontier, for the sources that were read.
        tail_records: Records of the log that were read for it.
        notes: For people: what took long, what is old.
        seconds: Where the time went.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    as_of: dict[str, AsOf]
    tail_records: int = 0
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
