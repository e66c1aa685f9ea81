"""Reads a table's range and folds it: in the driver when small, in Spark when large."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.log.reader import LogReader
from spark_jobs.base import BaseRows
from spark_jobs.failures import spark_failures
from spark_jobs.fold_counted import copy_records
from spark_jobs.fold_driver import fold_in_driver
from spark_jobs.fold_sql import SqlFold, fold_sql
from spark_jobs.kafka_options import range_options
from spark_jobs.layout import GONE_COLUMN, quote
from spark_jobs.log_state import LogAddress, TablePlan
from spark_jobs.newest import TooLarge
from spark_jobs.replica import check_versions
from spark_jobs.staging import Staged

log = structlog.get_logger(__name__)

#: Up to so many offsets the driver reads and folds, if their rows take no more memory than
#: this; above it Spark does.
SMALL_RANGE: Final = 2_000_000
MOST_BYTES: Final = 640 * 2**20
#: More rows than these are handed to Spark in a file.
_IN_MEMORY_ROWS: Final = 5_000
_OFFSETS_PER_TASK: Final = 200_000
_MOST_TASKS: Final = 200


@dataclass(slots=True)
class Batch:
    """What a range makes of the replica's keys.

    Args:
        keys: Number of keys.
        gone: Number of them that are removed.
        records: Records that were read; None when Spark read them.
        out_of_range: Column to number of values that its Delta type cannot hold.
        table: When the driver folded it: one row per key, in the replica's columns and
            ``_cdc_gone``.
        staged: The file in which Spark is handed ``table``; None: it is handed over in memory.
    """

    keys: int
    gone: int
    records: int | None = None
    out_of_range: Mapping[str, int] = field(default_factory=dict)
    table: Any = field(default=None, repr=False)
    staged: Staged | None = None
    _frame: DataFrame | None = None
    _hand_over: Callable[[], DataFrame] | None = field(default=None, repr=False)
    _sql: SqlFold | None = field(default=None, repr=False)

    @property
    def frame(self) -> DataFrame:
        """The rows as Spark's; they are handed over when they are first asked for.

        Raises:
            LakeError: ``spark_failed``.
            EnvironmentProblem: ``lake_not_writable``.
        """
        if self._frame is None:
            assert self._hand_over is not None  # noqa: S101 - callers ask for batches with keys
            self._frame = self._hand_over()
        return self._frame

    def key_values(self, key_column: str) -> list[Any]:
        """Values of the key column of all rows, as Python values."""
        if self.table is not None:
            return list(self.table.column(key_column).to_pylist())
        rows = self.frame.select(f.col(quote(key_column))).toArrow()
        return list(rows.column(0).to_pylist())

    def key_range(self, key_column: str) -> tuple[Any, Any]:
        """Lowest and highest value of the key column."""
        if self.table is not None:
            found = pc.min_max(self.table.column(key_column)).as_py()
            return found["min"], found["max"]
        key = f.col(quote(key_column))
        row = self.frame.agg(f.min(key).alias("low"), f.max(key).alias("high")).toArrow()
        return row.column(0).to_pylist()[0], row.column(1).to_pylist()[0]

    def release(self) -> None:
        """Let go of what Spark keeps for it."""
        if self._sql is not None:
            self._sql.release()
        if self.staged is not None:
            self.staged.remove()


def fold_range(
    session: SparkSession,
    address: LogAddress,
    reader: LogReader,
    plan: TablePlan,
    base: BaseRows | None,
    folder: str,
    *,
    small: int = SMALL_RANGE,
    most_bytes: int = MOST_BYTES,
) -> Batch:
    """Read a range and fold it.

    Args:
        session: A worker session.
        address: Of the log.
        reader: Of the log.
        plan: The range.
        base: The replica at the range's start, if there is one.
        folder: The replica's, for a file that holds the batch.
        small: Most offsets that the driver reads itself.
        most_bytes: Most memory that the driver takes for it; above it Spark folds.

    Raises:
        LogError: ``bad_record``, ``value_lost``, ``row_missing``, and what reading raises.
        LakeError: ``value_out_of_range``, ``schema_unknown``, ``schema_change_unsupported``,
            ``history_compacted``, ``read_too_slow``, ``spark_failed``, ``too_many_moved``.
    """
    batch = None
    if plan.offset_count <= small:
        try:
            batch = _fold_in_driver(session, reader, plan, base, folder, most_bytes)
        except TooLarge:
            log.info("left_to_spark", table=plan.layout.table, offsets=plan.offset_count)
    if batch is None:
        batch = _fold_in_spark(session, address, plan, base)
    try:
        plan.check_window()
    except BaseException:
        batch.release()
        raise
    return batch


def _fold_in_driver(
    session: SparkSession,
    reader: LogReader,
    plan: TablePlan,
    base: BaseRows | None,
    folder: str,
    most_bytes: int,
) -> Batch:
    tables, records, far = fold_in_driver(reader, plan, base, most_bytes)
    if not tables:
        return Batch(0, 0, records)
    table = pa.concat_tables(tables)
    staged = Staged(folder) if table.num_rows > _IN_MEMORY_ROWS else None

    def hand_over() -> DataFrame:
        with spark_failures(plan.layout, "handing a batch to Spark"):
            if staged is not None:
                return staged.frame(session, plan.layout, table)
            # From Arrow, for which Spark starts no Python.
            return session.createDataFrame(table, plan.layout.spark_schema(gone=True))

    gone = pc.sum(table.column(GONE_COLUMN)).as_py()
    return Batch(table.num_rows, gone, records, far, table, staged, _hand_over=hand_over)


def _fold_in_spark(
    session: SparkSession, address: LogAddress, plan: TablePlan, base: BaseRows | None
) -> Batch:
    cores = session.sparkContext.defaultParallelism
    # The session is the thread's own; AQE makes fewer of them where rows are few.
    tasks = max(cores, min(_MOST_TASKS, plan.offset_count // _OFFSETS_PER_TASK))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))
    options = range_options(
        address.bootstrap,
        address.security,
        plan.record.topic,
        plan.offsets,
        cores,
    )

    def read() -> DataFrame:
        raw = session.read.format("kafka").options(**options).load()
        if not plan.layout.schema.counted:
            return raw
        return copy_records(raw, plan.bounds, base if plan.bounds.has_base else None)

    folded = fold_sql(session, read, plan.layout, plan.bounds, base)
    try:
        check_versions(plan.layout, plan.versions, folded.versions)
    except BaseException:
        folded.release()
        raise
    far = folded.out_of_range
    return Batch(folded.keys, folded.gone, out_of_range=far, _frame=folded.frame, _sql=folded)


def rows_of(batch: Batch, columns: list[str]) -> DataFrame:
    """The rows of a batch that are there, without ``_cdc_gone``."""
    kept = batch.frame.where(~f.col(GONE_COLUMN))
    return kept.select(*(f.col(quote(name)) for name in columns))
