"""Columns that the newest record of a key lacks: from its history in the range, per column."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark_jobs.base import BaseRows
from spark_jobs.failures import fail_if
from spark_jobs.layout import Layout, quote
from spark_jobs.records import AFTER, CREATES, KEY, OFFSET, OP, POSITION, UNCHANGED
from spark_jobs.texts import JSON_OPTIONS, json_text
from spark_jobs.values import text_struct, typed

_HELD = "_cdc_b_held"
_BASE_KEY = "_cdc_b_key"
# Of a column by its number; they stand beside the table's own, none of which has the prefix.
_OF_BASE, _LAST = "_cdc_b_{}", "_cdc_l_{}"
_CARRIED, _FIRST, _REREAD = "_cdc_v_{}", "_cdc_f_{}", "_cdc_r_{}"


def complete_columns(
    history: DataFrame,
    lacking: DataFrame,
    columns: Sequence[str],
    layout: Layout,
    base: BaseRows | None,
) -> DataFrame:
    """Rows with every column.

    A column's value is that of the newest record that carries it. Where there is none since
    the row began in this range, it is the one that capture re-read; where the row is older
    than the range, it is the replica's.

    Args:
        history: Every record of these keys in the range.
        lacking: One row per key, typed; the columns that its newest record lacks are NULL.
        columns: The columns that may be lacking.
        layout: The replica's columns.
        base: The replica at the start of the range; None: nothing can be inherited.
    """
    found = _per_column(_without_copies(history), columns, layout)
    rows = lacking.join(found, KEY)
    targets = [layout.schema.column(name).target for name in columns]
    if base is not None:
        held = base.frame().select(
            f.col(quote(layout.key_column)).alias(_BASE_KEY),
            f.lit(True).alias(_HELD),
            *(f.col(quote(name)).alias(_OF_BASE.format(i)) for i, name in enumerate(targets)),
        )
        rows = rows.join(held, f.col(quote(layout.key_column)) == f.col(_BASE_KEY), "left")
    for i, name in enumerate(columns):
        rows = rows.withColumn(targets[i], _value(i, name, layout, base is not None))
    return rows


def _without_copies(history: DataFrame) -> DataFrame:
    """One record per key and position: the last copy; a delete rather than its tombstone."""
    fields = [f.col(name) for name in (OP, AFTER, UNCHANGED)]
    copies = f.struct((f.col(OP) == "d").alias("d"), f.col(OFFSET).alias("o"))
    grouped = history.groupBy(KEY, POSITION, CREATES)
    return grouped.agg(f.max_by(f.struct(*fields), copies).alias("r")).select(
        KEY, POSITION, CREATES, "r.*"
    )


def _per_column(history: DataFrame, columns: Sequence[str], layout: Layout) -> DataFrame:
    """Per key and column: what carries it last, the first after, and the first re-read."""
    at = f.struct(f.col(POSITION).alias("p"), f.col(CREATES).alias("c"))
    values = f.from_json(f.col(AFTER), text_struct(list(columns)), JSON_OPTIONS)
    present = f.json_object_keys(f.col(AFTER))
    opened = history.select(
        KEY, CREATES, at.alias("at"), values.alias("a"), present.alias("present"), UNCHANGED, AFTER
    )
    unsent = f.coalesce(f.col(UNCHANGED), f.array())
    decides = [~f.col(CREATES) | ~f.array_contains(unsent, name) for name in columns]
    last = [
        f.max(f.when(decide, f.col("at"))).over(Window.partitionBy(KEY)).alias(_LAST.format(i))
        for i, decide in enumerate(decides)
    ]
    opened = opened.select("*", *last)
    picks = []
    for i, name in enumerate(columns):
        column = layout.schema.column(name)
        text = json_text(column, f.col(AFTER), f.col(f"a.{quote(name)}"))
        has = f.array_contains(f.col("present"), name)
        last_at = f.col(_LAST.format(i))
        after = last_at.isNull() | (f.col("at") > last_at)
        carried = f.struct(f.col(CREATES).alias("row"), text.alias("t"))
        reread = f.struct(has.alias("has"), text.alias("t"))
        picks += [
            f.max_by(carried, f.when(decides[i], f.col("at"))).alias(_CARRIED.format(i)),
            f.min_by(reread, f.when(after, f.col("at"))).alias(_FIRST.format(i)),
            f.min_by(reread, f.when(after & has, f.col("at"))).alias(_REREAD.format(i)),
        ]
    return opened.groupBy(KEY).agg(*picks)


def _value(i: int, name: str, layout: Layout, has_base: bool) -> Column:
    index = layout.schema.column_names.index(name)
    column = layout.schema.columns[index]
    carried, first, reread = (f.col(helper.format(i)) for helper in (_CARRIED, _FIRST, _REREAD))
    is_carried = f.coalesce(carried["row"], f.lit(False))
    value = f.when(is_carried, typed(column, index, carried["t"]))
    known = is_carried
    if has_base:
        older = carried.isNull()
        held = older & f.col(_HELD).isNotNull()
        has_first = older & f.coalesce(first["has"], f.lit(False))
        has_reread = ~older & reread.isNotNull()
        value = value.when(held, f.col(_OF_BASE.format(i)))
        value = value.when(has_first, typed(column, index, first["t"]))
        value = value.when(has_reread, typed(column, index, reread["t"]))
        known = known | held | has_first | has_reread
    else:
        value = value.when(reread.isNotNull(), typed(column, index, reread["t"]))
        known = known | reread.isNotNull()
    return f.when(fail_if(~known, "value_lost", index).isNull(), value)
