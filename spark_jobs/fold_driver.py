"""The fold of a range in the driver: newest records by Arrow, the rest by ``cdc.fold``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from cdc.envelope import LogRecord, parse_record
from cdc.fold import fold
from cdc.log.ranges import Range, RawRecord
from cdc.log.reader import LogReader
from cdc.tally import Tally
from spark_jobs.base import BaseRows
from spark_jobs.fold_small import OutOfRange, outcome_table
from spark_jobs.log_state import TablePlan
from spark_jobs.newest import Found, NewestRecords, TooLarge
from spark_jobs.replica import check_versions

#: Keys whose rows may have to be looked up in the replica, at most.
_MOST_LACKING: Final = 20_000
#: Copies of rows that are handed on at once.
_COPIES: Final = 5_000
#: A parsed record takes so much more memory than its JSON.
_PARSED_FACTOR: Final = 4


def fold_in_driver(
    reader: LogReader, plan: TablePlan, base: BaseRows | None, most_bytes: int
) -> tuple[list[Any], int, Counter[str]]:
    """Read a range and fold it.

    Args:
        reader: Of the log.
        plan: The range.
        base: The replica at the range's start, if there is one.
        most_bytes: Memory to take, about.

    Returns:
        One row per key, as Arrow tables in the replica's columns and ``_cdc_gone``; the number
        of records read; and by column, how many values its Delta type cannot hold.

    Raises:
        TooLarge: It would take more than ``most_bytes``; nothing was done.
        LogError: ``bad_record``, ``value_lost``, ``row_missing``, and what reading raises.
        LakeError: ``value_out_of_range``, ``schema_unknown``, ``schema_change_unsupported``.
    """
    newest = NewestRecords(
        plan.layout,
        plan.record.topic,
        plan.bounds,
        most_bytes,
        lambda version: check_versions(plan.layout, plan.versions, {version}),
    )
    if plan.layout.schema.counted:
        read = _add_copies(reader, plan, base, most_bytes, newest)
        found = newest.found()
        return found.tables, read, found.out_of_range
    for _, partition, records in reader.ranges(_ranges(plan)):
        newest.add(partition, records)
    found = newest.found()
    if found.lacking:
        found.tables.append(_completed(reader, plan, base, found, most_bytes))
    return found.tables, found.records, found.out_of_range


def _add_copies(
    reader: LogReader,
    plan: TablePlan,
    base: BaseRows | None,
    most_bytes: int,
    newest: NewestRecords,
) -> int:
    """Count the rows of a table without a key; their copies are folded. Returns records read."""
    bounds, topic = plan.bounds, plan.record.topic
    tally = Tally(plan.layout.table, topic, bounds.frontier, bounds.truncate, bounds.start)
    for _, partition, records in reader.ranges(_ranges(plan)):
        tally.add(partition, records)
        if tally.size > most_bytes:
            raise TooLarge
    held = base.copies(tally.changes) if base is not None and bounds.has_base else {}
    batch: dict[int, list[RawRecord]] = {}
    for n, (partition, copy) in enumerate(tally.copies(held), 1):
        batch.setdefault(partition, []).append(copy)
        if n % _COPIES == 0:
            _add_all(newest, batch)
    _add_all(newest, batch)
    return tally.read


def _add_all(newest: NewestRecords, batch: dict[int, list[RawRecord]]) -> None:
    for partition, records in batch.items():
        newest.add(partition, records)
    batch.clear()


def _completed(
    reader: LogReader, plan: TablePlan, base: BaseRows | None, found: Found, most_bytes: int
) -> Any:
    """The rows whose newest record lacks columns: their history, read once more."""
    if len(found.lacking) > _MOST_LACKING:
        raise TooLarge
    bounds = plan.bounds
    outcomes = fold(
        _history(reader, plan, found.needed, most_bytes),
        bounds.frontier,
        bounds.truncate,
        start=bounds.start,
        columns=plan.layout.schema.column_names,
    )
    kept = {key: outcome for key, outcome in outcomes.items() if key in found.lacking}
    if len(kept) != len(found.lacking):
        raise AssertionError("completing columns lost a key")
    far: list[OutOfRange] = []
    table = outcome_table(plan.layout, kept, base if bounds.has_base else None, far)
    found.out_of_range.update(name for _, name in far)
    return table


def _history(
    reader: LogReader, plan: TablePlan, keys: frozenset[bytes], most_bytes: int
) -> Iterator[LogRecord]:
    topic = plan.record.topic
    taken = 0
    for _, partition, records in reader.ranges(_ranges(plan)):
        for offset, key, value, headers in records:
            if key in keys:
                taken += _PARSED_FACTOR * len(value or b"")
                if taken > most_bytes:
                    raise TooLarge
                yield parse_record(topic, partition, offset, key, value, headers)


def _ranges(plan: TablePlan) -> list[Range]:
    topic = plan.record.topic
    return [Range(topic, p, start, end) for p, (start, end) in plan.offsets.items()]
