"""Records of a table topic in Spark: parsed but for their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from cdc.envelope import NEW_KEY_HEADER, OLD_KEY_HEADER, POSITION_HEADER, SCHEMA_HEADER
from cdc.position import Position
from spark_jobs.failures import fail_if
from spark_jobs.texts import JSON_OPTIONS, row_text

# Columns of the parsed records and of the newest record per key; no source column has the prefix.
KEY, POSITION, OP, AFTER = "_cdc_r_key", "_cdc_r_position", "_cdc_r_op", "_cdc_r_after"
UNCHANGED, VERSION, OLD_KEY = "_cdc_r_unchanged", "_cdc_r_version", "_cdc_r_old_key"
NEW_KEY, PARTITION, OFFSET = "_cdc_r_new_key", "_cdc_r_partition", "_cdc_r_offset"
CREATES: Final = "_cdc_r_creates"
VALUE, _PARSED = "_cdc_r_value", "_cdc_r_parsed"

_ENVELOPE: Final = "op STRING, after STRING, source STRUCT<unchanged: ARRAY<STRING>>"
_POSITION_LENGTH: Final = 30


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range [start, frontier) of positions.

    Args:
        start: P; None: from the beginning, there is no replica to inherit from.
        frontier: F, exclusive.
        truncate: The newest truncate below F, if any.
    """

    start: Position | None
    frontier: Position
    truncate: Position | None = None

    @property
    def has_base(self) -> bool:
        """Whether rows of the replica outlive the range's truncates."""
        return self.start is not None and (self.truncate is None or self.truncate < self.start)

    @property
    def truncated(self) -> bool:
        """Whether a truncate in the range empties the replica."""
        return self.truncate is not None and (self.start is None or self.truncate >= self.start)


def framed_records(raw: DataFrame, bounds: Bounds, kept: Sequence[str] = ()) -> DataFrame:
    """The records of a topic that count, by their headers alone: values are not looked at.

    Args:
        raw: Columns key, value (binary), partition, offset, headers, as Spark's Kafka source.
        bounds: Records outside of them are left out.
        kept: Columns of ``raw`` to keep beside.
    """
    framed = raw.select(
        *kept,
        f.col("key").cast("string").alias(KEY),
        f.col("value").alias(VALUE),
        f.col("partition").alias(PARTITION),
        f.col("offset").alias(OFFSET),
        header(POSITION_HEADER, 0).alias(POSITION),
        header(SCHEMA_HEADER, 1).try_cast("int").alias(VERSION),
        header(OLD_KEY_HEADER, 2).alias(OLD_KEY),
        header(NEW_KEY_HEADER, 2).alias(NEW_KEY),
    )
    whole = f.coalesce(f.length(POSITION), f.lit(0)) == _POSITION_LENGTH
    counts = f.col(POSITION) < str(bounds.frontier)
    for lowest in (bounds.start, bounds.truncate):
        if lowest is not None:
            counts &= f.col(POSITION) >= str(lowest)
    good = f.col(KEY).isNotNull() & whole & f.col(VERSION).isNotNull()
    # What is not good is kept, so that whoever looks at its position fails.
    counted = framed.where(~f.coalesce(whole, f.lit(False)) | counts)
    return counted.withColumn(POSITION, f.coalesce(_bad_if(~good), f.col(POSITION)))


def parse_records(raw: DataFrame, bounds: Bounds) -> DataFrame:
    """The same with the parts of their envelopes; rows are still JSON.

    Args:
        raw: As for ``framed_records``.
        bounds: Records outside of them are left out.
    """
    framed = framed_records(raw, bounds)
    # One column that many refer to: so Spark parses it once.
    opened = framed.withColumn(
        _PARSED, f.from_json(f.col(VALUE).cast("string"), _ENVELOPE, JSON_OPTIONS)
    )
    op = f.when(f.col(VALUE).isNull(), f.lit("tombstone")).otherwise(f.col(_PARSED)["op"])
    creates = op.isin("c", "r", "u")
    # Not what the parser prints: it would write floats in other digits.
    after = f.when(f.col(_PARSED)["after"].isNotNull(), row_text(f.col(VALUE).cast("string")))
    good = op.isin("d", "tombstone") | (creates & after.isNotNull())
    failure = _bad_if(~f.coalesce(good, f.lit(False)))
    return opened.select(
        KEY,
        PARTITION,
        OFFSET,
        f.coalesce(failure, f.col(POSITION)).alias(POSITION),
        VERSION,
        OLD_KEY,
        NEW_KEY,
        op.alias(OP),
        after.alias(AFTER),
        f.col(_PARSED)["source"]["unchanged"].alias(UNCHANGED),
        creates.alias(CREATES),
    )


def _bad_if(condition: Column) -> Column:
    return fail_if(condition, "bad_record", f.col(PARTITION), f.col(OFFSET))


def raw_order() -> Column:
    """Sorts records of a key as history does, as ``cdc.fold`` defines it, without parsing."""
    value = f.col(VALUE)
    # The envelope ends with op and a number; of records that share a position and a key, only
    # copies and a delete with its tombstone are known.
    op = f.substring(f.substring_index(value.cast("string"), '"op":"', -1), 1, 1)
    rank = f.when(value.isNull(), 0).when(op == "d", 1).otherwise(2)
    return f.struct(f.col(POSITION).alias("o0"), rank.alias("o1"), f.col(OFFSET).alias("o2"))


def lsn_of(position: Column) -> Column:
    """Commit LSN of a position's text."""
    return f.conv(f.substring(position, 6, 16), 16, 10).cast("bigint")


def header(name: str, index: int) -> Column:
    """A header's text; ours stand at fixed places, which spares a search."""
    headers = f.col("headers")
    at = f.try_element_at(headers, f.lit(index + 1))
    found = f.try_element_at(f.filter(headers, lambda h: h["key"] == name), f.lit(1))
    return f.when(at["key"] == name, at["value"]).otherwise(found["value"]).cast("string")
