"""The fold of a large range in Spark: the same outcome per key as ``cdc.fold.fold``.

Most keys are decided by their newest record alone. Where that one lacks columns
(``unchanged``), the key's history in the range is looked up once more: per column, the newest
record that carries it, else the replica's row. Rows that moved to another key and still lack
columns are folded in the driver by ``cdc.fold``; they are rare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from cdc import codecs
from cdc.lake import KEY_COLUMN, LSN_COLUMN
from cdc.schema import Column as SchemaColumn
from spark_jobs.base import BaseRows
from spark_jobs.failures import fail_if, spark_failures
from spark_jobs.fold_chains import ChainFold, chain_keys, key_frame
from spark_jobs.fold_columns import complete_columns
from spark_jobs.layout import GONE_COLUMN, Layout, quote
from spark_jobs.records import (
    KEY,
    OFFSET,
    PARTITION,
    POSITION,
    UNCHANGED,
    VALUE,
    VERSION,
    Bounds,
    framed_records,
    lsn_of,
    parse_records,
    raw_order,
)
from spark_jobs.texts import JSON_OPTIONS, json_text, row_text
from spark_jobs.values import out_of_range, text_struct, typed

log = structlog.get_logger(__name__)

_PARSED, _FAR = "_cdc_r_parsed", "_cdc_r_far"


@dataclass(slots=True)
class SqlFold:
    """The outcome of a range, one row per key.

    Args:
        frame: In the replica's columns and ``_cdc_gone``.
        keys: Number of rows.
        gone: Number of them that are removed keys.
        versions: Schema versions that the newest records name.
        out_of_range: Column to number of values that its Delta type cannot hold.
    """

    frame: DataFrame
    keys: int
    gone: int
    versions: set[int]
    out_of_range: dict[str, int]
    _cached: list[DataFrame] = field(default_factory=list)

    def release(self) -> None:
        """Let go of what Spark keeps for it."""
        for frame in self._cached:
            frame.unpersist()
        self._cached.clear()


def fold_sql(
    session: SparkSession,
    read: Callable[[], DataFrame],
    layout: Layout,
    bounds: Bounds,
    base: BaseRows | None,
) -> SqlFold:
    """Fold a range.

    Args:
        session: A worker session.
        read: Gives the raw records of the range's offsets; may be called several times.
        layout: The replica's columns.
        bounds: The range.
        base: The replica at ``bounds.start``.

    Raises:
        LakeError: ``value_out_of_range``, ``too_many_moved``, ``spark_failed``.
        LogError: ``bad_record``, ``value_lost``.
    """
    with spark_failures(layout, "folding a range of the log"):
        newest = _newest(framed_records(read(), bounds), layout)
        newest.persist(StorageLevel.MEMORY_AND_DISK)
        cached = [newest]
        try:
            lacks = f.size(f.coalesce(f.col(UNCHANGED), f.array())) > 0
            totals = newest.agg(
                f.count(f.lit(1)).alias("keys"),
                f.count_if(f.col(GONE_COLUMN)).alias("gone"),
                f.count_if(lacks).alias("lacking"),
                f.collect_set(VERSION).alias("versions"),
                f.array_distinct(f.flatten(f.collect_set(UNCHANGED))).alias("columns"),
                *(
                    f.count_if(f.array_contains(_FAR, index)).alias(f"far{index}")
                    for index, _ in _bending(layout)
                ),
            ).first()
            far = {column.name: totals[f"far{index}"] for index, column in _bending(layout)}
            whole = newest.where(~lacks).select(*_output(layout))
            frame = whole
            if totals["lacking"]:
                log.info("columns_unsent", table=layout.table, keys=totals["lacking"])
                lacking = newest.where(lacks)
                completed = _completed(
                    session, read, lacking, sorted(totals["columns"]), layout, bounds, base
                )
                completed.persist(StorageLevel.MEMORY_AND_DISK)
                cached.append(completed)
                if completed.count() != totals["lacking"]:
                    raise AssertionError("completing columns lost or doubled a key")
                frame = whole.unionByName(completed)
        except BaseException:
            for kept in cached:
                kept.unpersist()
            raise
    kept = {name: count for name, count in far.items() if count}
    return SqlFold(frame, totals["keys"], totals["gone"], set(totals["versions"]), kept, cached)


def _bending(layout: Layout) -> list[tuple[int, SchemaColumn]]:
    """Columns with values that their Delta types cannot hold and that are replaced."""
    return [(i, c) for i, c in enumerate(layout.schema.columns) if codecs.bends(c)]


def _newest(records: DataFrame, layout: Layout) -> DataFrame:
    """The newest record of each key, its columns typed; what it lacks is NULL."""
    fields = [f.col(name) for name in (POSITION, VERSION, PARTITION, OFFSET, VALUE)]
    # Most keys of a large range have one record: aggregating before the shuffle, which sorts,
    # would be for nothing.
    spread = records.repartition(f.col(KEY))
    newest = spread.groupBy(KEY).agg(f.max_by(f.struct(*fields), raw_order()).alias("n"))
    row = text_struct(list(layout.schema.column_names))
    opened = newest.select(
        KEY,
        "n.*",
        f.from_json(f.col(f"n.{VALUE}").cast("string"), _envelope(row), JSON_OPTIONS).alias(
            _PARSED
        ),
    )
    is_tombstone = f.col(VALUE).isNull()
    op = f.when(is_tombstone, f.lit("tombstone")).otherwise(f.col(_PARSED)["op"])
    # Records of earlier schemas may lack values of columns that are gone by now.
    known = f.array(*(f.lit(name) for name in layout.schema.column_names))
    unchanged = f.array_intersect(f.col(_PARSED)["source"]["unchanged"], known)
    after = f.col(_PARSED)["after"]
    raw = row_text(f.col(VALUE).cast("string"))
    gone = op.isin("d", "tombstone")
    good = gone | (op.isin("c", "r", "u") & after.isNotNull())
    key = key_column(layout)
    columns = []
    for index, column in enumerate(layout.schema.columns):
        if key is not None and column.target == layout.key_column:
            columns.append(key.alias(column.target))
            continue
        text = json_text(column, raw, after[column.name])
        if codecs.codec_of(column).toastable:
            unsent = f.array_contains(f.coalesce(unchanged, f.array()), column.name)
            text = f.when(~unsent, text)
        columns.append(typed(column, index, text).alias(column.target))
    columns.append(lsn_of(f.col(POSITION)).alias(LSN_COLUMN))
    if key is None:
        columns.append(f.col(KEY).alias(KEY_COLUMN))
    columns.append(gone.alias(GONE_COLUMN))
    far = [
        f.when(out_of_range(column, after[column.name]), f.lit(index))
        for index, column in _bending(layout)
    ]
    if far:
        columns.append(f.array_compact(f.array(*far)).alias(_FAR))
    bad = ~f.coalesce(good, f.lit(False))
    failure = fail_if(bad, "bad_record", f.col(PARTITION), f.col(OFFSET))
    kept = [f.coalesce(failure, f.col(KEY)).alias(KEY), f.col(POSITION)]
    return opened.select(*kept, unchanged.alias(UNCHANGED), f.col(VERSION), *columns)


def _envelope(row: StructType) -> StructType:
    source = StructType([StructField("unchanged", ArrayType(StringType()))])
    return StructType(
        [
            StructField("op", StringType()),
            StructField("after", row),
            StructField("source", source),
        ]
    )


def key_column(layout: Layout) -> Column | None:
    """The simple key's typed value from the record key; None when the record key is stored."""
    simple = layout.simple_key
    if simple is None:
        return None
    text = f.from_json(f.col(KEY), text_struct([simple.name]), JSON_OPTIONS)[simple.name]
    index = layout.schema.column_names.index(simple.name)
    return typed(simple, index, text)


def _output(layout: Layout) -> list[Column]:
    return [f.col(quote(name)) for name in (*layout.names, GONE_COLUMN)]


def _completed(
    session: SparkSession,
    read: Callable[[], DataFrame],
    lacking: DataFrame,
    columns: list[str],
    layout: Layout,
    bounds: Bounds,
    base: BaseRows | None,
) -> DataFrame:
    """The rows whose newest record lacks columns, with those columns."""
    has_base = base if bounds.has_base else None
    moved = chain_keys(parse_records(read(), bounds), lacking, layout)
    if moved.dirty:
        chained = ChainFold(session, layout, bounds, has_base)
        from_chains = chained.rows(parse_records(read(), bounds), moved)
        dirty = f.broadcast(key_frame(session, moved.dirty))
        lacking = lacking.join(dirty, KEY, "left_anti")
    history = parse_records(read(), bounds).join(lacking.select(KEY), KEY, "left_semi")
    rows = complete_columns(history, lacking, columns, layout, has_base)
    rows = rows.select(*_output(layout))
    return rows.unionByName(from_chains) if moved.dirty else rows
