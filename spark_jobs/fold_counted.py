"""Tables without a key in Spark: records of changes become records of copies, as ``cdc.tally``.

What comes out looks like raw records of a table with keys, one for each copy that comes or goes,
and is folded like them.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from cdc.counted import DIGEST_LENGTH, MINUS_HEADER, PLUS_HEADER
from spark_jobs.base import BaseRows
from spark_jobs.failures import fail_if
from spark_jobs.records import POSITION, Bounds, framed_records, header

_DIGEST: Final = f"^[0-9a-f]{{{DIGEST_LENGTH}}}$"
_RAW: Final = ("partition", "offset", "value", "headers")


def copy_records(raw: DataFrame, bounds: Bounds, base: BaseRows | None) -> DataFrame:
    """One raw record for each copy of a row that comes or goes, the copy's key as its own.

    Args:
        raw: Of the range, as Spark's Kafka source has them; headers included.
        bounds: The range.
        base: The replica at its start, if there is one that keeps its rows.
    """
    framed = framed_records(raw, bounds, kept=_RAW).select(
        *_RAW,
        POSITION,
        header(PLUS_HEADER, 2).alias("plus"),
        f.coalesce(header(MINUS_HEADER, 2), header(MINUS_HEADER, 3)).alias("minus"),
    )
    named = [f.coalesce(f.col(name).rlike(_DIGEST), f.lit(True)) for name in ("plus", "minus")]
    some = f.col("plus").isNotNull() | f.col("minus").isNotNull()
    bad = fail_if(
        ~(some & named[0] & named[1] & f.col("value").isNotNull()),
        "bad_record",
        f.col("partition"),
        f.col("offset"),
    )
    checked = framed.withColumn(POSITION, f.coalesce(bad, f.col(POSITION)))
    # Copies of a redelivered record have one position.
    fields = [f.col(name) for name in (*_RAW, "plus", "minus")]
    once = checked.groupBy(POSITION).agg(f.min_by(f.struct(*fields), f.col("offset")).alias("r"))
    signed = once.select(
        POSITION,
        "r.*",
        f.explode(
            f.array(
                f.struct(f.col("r.plus").alias("d"), f.lit(1).alias("n")),
                f.struct(f.col("r.minus").alias("d"), f.lit(-1).alias("n")),
            )
        ).alias("s"),
    ).where(f.col("s.d").isNotNull())
    came = f.col("s.n") > 0
    record = [f.when(came, f.col("value")).alias("value")]
    record += [f.col(name) for name in ("partition", "offset", "headers")]
    # The newest that brought the row; where none did, any.
    order = f.struct(came.alias("came"), f.col(POSITION).alias("at"))
    rows = signed.groupBy(f.col("s.d").alias("d")).agg(
        f.sum("s.n").alias("n"), f.max_by(f.struct(*record), order).alias("r")
    )
    rows = rows.where(f.col("n") != 0)
    if base is None:
        counted = rows.withColumn("held", f.lit(0).cast("bigint"))
    else:
        held = base.digests().groupBy("d").agg(f.count(f.lit(1)).alias("held"))
        counted = rows.join(held, "d", "left").fillna(0, ["held"])
    now = f.col("held") + f.col("n")
    missing = fail_if(now < 0, "row_missing", -now)
    low, high = f.least(f.col("held"), now) + 1, f.greatest(f.col("held"), now)
    copies = counted.select(
        f.coalesce(missing, f.col("d")).alias("d"),
        (f.col("n") > 0).alias("came"),
        "r",
        f.explode(f.sequence(low, high)).alias("copy"),
    )
    key = f.concat(f.col("d"), f.lit("-"), f.lpad(f.hex("copy"), 8, "0"))
    return copies.select(
        key.cast("binary").alias("key"),
        f.when(f.col("came"), f.col("r.value")).alias("value"),
        f.col("r.partition").alias("partition"),
        f.col("r.offset").alias("offset"),
        f.col("r.headers").alias("headers"),
    )
