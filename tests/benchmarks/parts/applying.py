"""A table in a log of a made-up source, and an applier whose lake has nothing yet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cdc.schema import TableSchema
from spark_jobs.apply import Applier, ApplySettings
from spark_jobs.log_state import LogAddress
from spark_jobs.session import build_session
from tests.support.loggen import LogGen
from tests.support.stack import open_stack


@dataclass(frozen=True, slots=True)
class Applying:
    """What a benchmark of apply works with.

    Args:
        spark: The session, with two threads.
        applier: Of the lake.
        gen: Writes the log.
        lake: The lake's folder.
        folder: For what else there is, gone at the end.
    """

    spark: SparkSession
    applier: Applier
    gen: LogGen
    lake: str
    folder: Path


@contextmanager
def applying(
    schema: TableSchema, rows: Iterable[list[Any]], partitions: int = 1
) -> Iterator[Applying]:
    """Servers of their own, on which one table is loaded."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as temporary:
        folder = Path(temporary)
        stack_folder = folder / "stack"
        stack_folder.mkdir()
        with open_stack(stack_folder) as stack, LogGen(stack.bootstrap, "bench.") as gen:
            gen.create([schema], partitions=partitions)
            gen.load({schema.id: rows}, remember=False)
            spark = build_session("local[2]", "2g", {})
            lake = str(folder / "lake")
            applier = Applier(spark, LogAddress(stack.bootstrap, {}, "bench."), ApplySettings(lake))
            try:
                yield Applying(spark, applier, gen, lake, folder)
            finally:
                applier.close()
                spark.stop()
