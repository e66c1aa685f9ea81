"""Records of a table topic in Spark: parsed but for their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from cdc.envelope import NEW_KEY_HEADER, OLD_KEY_HEADER, POSITION_HEADER, SCHEMA_HEADER
from cdc.position import Position
from spark_jobs.failures import fail_if

# Columns of the parsed records and of the newest record per key; no source column has the prefix.
KEY, POSITION, OP, AFTER = "_cdc_r_key", "_cdc_r_position", "_cdc_r_op", "_cdc_r_after"
UNCHANGED, VERSION, OLD_KEY = "_cdc_r_unchanged", "_cdc_r_version", "_cdc_r_old_key"
NEW_KEY, PARTITION, OFFSET = "_cdc_r_new_key", "_cdc_r_partition", "_cdc_r_offset"
CREATES: Final = "_cdc_r_creates"

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


def parse_records(raw: DataFrame, bounds: Bounds) -> DataFrame:
    """The records of a topic that count, parsed but for their values.

    Args:
        raw: Columns key, value (binary), partition, offset, headers, as Spark's Kafka source.
        bounds: Records outside of them are left out.
    """
    position = _header(POSITION_HEADER, 0)
    version = _header(SCHEMA_HEADER, 1).try_cast("int")
    envelope = f.from_json(f.col("value").cast("string"), _ENVELOPE)
    opened = raw.select(
        f.col("key").cast("string").alias(KEY),
        f.col("partition").alias(PARTITION),
        f.col("offset").alias(OFFSET),
        position.alias(POSITION),
        version.alias(VERSION),
        _header(OLD_KEY_HEADER, 2).alias(OLD_KEY),
        _header(NEW_KEY_HEADER, 2).alias(NEW_KEY),
        f.when(f.col("value").isNull(), f.lit("tombstone")).otherwise(envelope["op"]).alias(OP),
        envelope["after"].alias(AFTER),
        envelope["source"]["unchanged"].alias(UNCHANGED),
    )
    creates = f.col(OP).isin("c", "r", "u")
    good = (
        f.col(KEY).isNotNull()
        & (f.coalesce(f.length(POSITION), f.lit(0)) == _POSITION_LENGTH)
        & f.col(VERSION).isNotNull()
        & (f.col(OP).isin("d", "tombstone") | (creates & f.col(AFTER).isNotNull()))
    )
    failure = fail_if(
        ~f.coalesce(good, f.lit(False)), "bad_record", f.col(PARTITION), f.col(OFFSET)
    )
    # A row's position decides whether it counts, so a bad record cannot slip through there.
    checked = opened.withColumn(POSITION, f.coalesce(failure, f.col(POSITION)))
    counts = f.col(POSITION) < str(bounds.frontier)
    for lowest in (bounds.start, bounds.truncate):
        if lowest is not None:
            counts &= f.col(POSITION) >= str(lowest)
    return checked.where(counts).withColumn(CREATES, creates)


def order(*more: str) -> Column:
    """Sorts records of a key as history does, as ``cdc.fold`` defines it."""
    # A delete wins over its tombstone, which says less.
    is_delete = f.col(OP) == "d"
    columns = [f.col(POSITION), f.col(CREATES), is_delete, f.col(OFFSET), *map(f.col, more)]
    return f.struct(*(column.alias(f"o{i}") for i, column in enumerate(columns)))


def lsn_of(position: Column) -> Column:
    """Commit LSN of a position's text."""
    return f.conv(f.substring(position, 6, 16), 16, 10).cast("bigint")


def _header(name: str, index: int) -> Column:
    """A header's text; ours stand at fixed places, which spares a search."""
    headers = f.col("headers")
    at = f.try_element_at(headers, f.lit(index + 1))
    found = f.try_element_at(f.filter(headers, lambda h: h["key"] == name), f.lit(1))
    return f.when(at["key"] == name, at["value"]).otherwise(found["value"]).cast("string")
