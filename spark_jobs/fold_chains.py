"""Rows that moved to another key without all their columns: folded in the driver, up to a limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from cdc.envelope import LogRecord
from cdc.errors import LakeError
from cdc.fold import fold
from cdc.position import Position
from spark_jobs.base import BaseRows
from spark_jobs.fold_small import outcome_table
from spark_jobs.layout import Layout
from spark_jobs.records import (
    AFTER,
    CREATES,
    KEY,
    NEW_KEY,
    OFFSET,
    OLD_KEY,
    OP,
    PARTITION,
    POSITION,
    UNCHANGED,
    VERSION,
    Bounds,
)

#: Keys and bytes of their records' rows that the driver folds; more are refused.
MOST_KEYS: Final = 200_000
MOST_BYTES: Final = 256 * 2**20
_PARSED_FACTOR: Final = 4


@dataclass(frozen=True, slots=True)
class Moved:
    """Keys of such rows.

    Args:
        dirty: Those whose newest record lacks columns.
        needed: Those and every key that their rows had before.
    """

    dirty: set[str]
    needed: set[str]


def chain_keys(records: DataFrame, lacking: DataFrame, layout: Layout) -> Moved:
    """Find the keys whose missing columns may be under another key.

    Args:
        records: Of the range, parsed.
        lacking: One row per key whose newest record lacks columns.
        layout: Names the table.

    Raises:
        LakeError: ``too_many_moved``.
    """
    unsent = f.size(f.coalesce(f.col(UNCHANGED), f.array())) > 0
    links = (
        records.where(f.col(CREATES) & f.col(OLD_KEY).isNotNull() & unsent)
        .select(KEY, OLD_KEY)
        .distinct()
    )
    older: dict[str, set[str]] = {}
    found = links.limit(MOST_KEYS + 1).collect()
    if len(found) > MOST_KEYS:
        raise too_many_moved(layout)
    for row in found:
        older.setdefault(row[KEY], set()).add(row[OLD_KEY])
    if not older:
        return Moved(set(), set())
    dirty = {
        row[KEY] for row in lacking.select(KEY).join(links.select(KEY), KEY, "left_semi").collect()
    }
    needed: set[str] = set()
    left = list(dirty)
    while left:
        key = left.pop()
        if key not in needed:
            needed.add(key)
            left += older.get(key, ())
    return Moved(dirty, needed)


def too_many_moved(layout: Layout) -> LakeError:
    """The error for a range with more moved rows than the driver may hold."""
    return LakeError(
        "too_many_moved",
        "too many rows moved to other keys without all their columns to be folded at once",
        table=layout.table,
        remedy="set apply.max_records lower, or start a new load of the table; REPLICA IDENTITY "
        "FULL avoids this",
    )


def key_frame(session: SparkSession, keys: set[str]) -> DataFrame:
    """Record keys as a column; from Arrow, for which Spark starts no Python."""
    return session.createDataFrame(pa.table({KEY: pa.array(sorted(keys), pa.string())}))


class ChainFold:
    """Folds the history of moved rows by ``cdc.fold``.

    Args:
        session: A worker session.
        layout: The replica's columns.
        bounds: The range.
        base: The replica at its start; None: nothing can be inherited.
    """

    def __init__(
        self, session: SparkSession, layout: Layout, bounds: Bounds, base: BaseRows | None
    ) -> None:
        self._session = session
        self._layout = layout
        self._bounds = bounds
        self._base = base

    def rows(self, records: DataFrame, moved: Moved) -> DataFrame:
        """The rows of ``moved.dirty``, complete.

        Args:
            records: Of the range, parsed.
            moved: Of ``chain_keys``.

        Raises:
            LakeError: ``too_many_moved``.
        """
        wanted = key_frame(self._session, moved.needed)
        found = records.join(f.broadcast(wanted), KEY, "left_semi")
        outcomes = fold(
            self._bounded(found.toLocalIterator()),
            self._bounds.frontier,
            self._bounds.truncate,
            start=self._bounds.start,
            columns=self._layout.schema.column_names,
        )
        dirty = {key.encode() for key in moved.dirty}
        kept = {key: outcome for key, outcome in outcomes.items() if key in dirty}
        table = outcome_table(self._layout, kept, self._base)
        return self._session.createDataFrame(table, self._layout.spark_schema(gone=True))

    def _bounded(self, rows: Iterable[Row]) -> Iterator[LogRecord]:
        taken = 0
        for row in rows:
            taken += _PARSED_FACTOR * len(row[AFTER] or "")
            if taken > MOST_BYTES:
                raise too_many_moved(self._layout)
            yield _record(row)


def _record(row: Row) -> LogRecord:
    after = row[AFTER]
    old_key, new_key = row[OLD_KEY], row[NEW_KEY]
    return LogRecord(
        row[PARTITION],
        row[OFFSET],
        row[KEY].encode(),
        Position.parse(row[POSITION]),
        row[VERSION],
        row[OP],
        None,
        None if after is None else orjson.loads(after),
        tuple(row[UNCHANGED] or ()),
        None if new_key is None else new_key.encode(),
        None if old_key is None else old_key.encode(),
    )
