"""Hands a folded batch to Spark as a Parquet file in the replica's folder.

Delta never refers to it. Spark reads it as often as a MERGE needs it, by columns, and as the
file does not change, every read is the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_jobs.failures import lake_not_writable
from spark_jobs.layout import Layout

_FOLDER: Final = "_cdc_batch"
_ROW_GROUP: Final = 50_000


class Staged:
    """A batch in a file.

    Args:
        folder: The replica's; it has at most one batch at a time.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder, _FOLDER)

    def frame(self, session: SparkSession, layout: Layout, table: Any) -> DataFrame:
        """Write the batch, and read it.

        Args:
            session: A worker session.
            layout: The replica's columns.
            table: In these columns and ``_cdc_gone``.

        Raises:
            EnvironmentProblem: ``lake_not_writable``.
        """
        # Column names of Postgres need not be names that Parquet takes.
        names = [f"c{i}" for i in range(table.num_columns)]
        try:
            self.remove()
            self._folder.mkdir(parents=True)
            pq.write_table(
                table.rename_columns(names),
                self._folder / "batch.parquet",
                row_group_size=_ROW_GROUP,
                compression="snappy",
            )
        except OSError as problem:
            raise lake_not_writable(problem, layout, "write a batch") from None
        schema = layout.spark_schema(gone=True)
        wanted = schema.names
        for field, name in zip(schema.fields, names, strict=True):
            field.name = name
        schema.names = names
        read = session.read.schema(schema).parquet(str(self._folder / "batch.parquet"))
        return read.select(*(f.col(a).alias(b) for a, b in zip(names, wanted, strict=True)))

    def remove(self) -> None:
        """Delete the file; also what a killed process left."""
        # What stays is removed before the next batch.
        shutil.rmtree(self._folder, ignore_errors=True)
