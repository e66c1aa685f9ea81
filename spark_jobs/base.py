"""The rows that a replica holds at the position where a batch begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc import codecs
from cdc.counted import DIGEST_LENGTH
from cdc.lake import KEY_COLUMN
from spark_jobs.failures import spark_failures
from spark_jobs.layout import Layout, quote

_BASE_KEY = "_cdc_base"


def key_value(layout: Layout, key: bytes) -> Any:
    """The value of the replica's key column for a record key."""
    simple = layout.simple_key
    if simple is None:
        return key.decode()
    return codecs.from_json(simple)(orjson.loads(key)[simple.name])


class BaseRows:
    """A replica at one version.

    Args:
        session: A worker session.
        path: The replica's folder.
        version: Delta's version.
        layout: Its columns; the replica may lack the newest of them.
    """

    def __init__(self, session: SparkSession, path: str, version: int, layout: Layout) -> None:
        self._session = session
        self._path = path
        self._version = version
        self._layout = layout

    def frame(self) -> DataFrame:
        """All rows."""
        return (
            self._session.read.format("delta")
            .option("versionAsOf", str(self._version))
            .load(self._path)
        )

    def rows(self, keys: Iterable[bytes], columns: Iterable[str]) -> dict[bytes, dict[str, Any]]:
        """Some rows.

        Args:
            keys: Record keys; those that the replica has not are not in the answer.
            columns: Names of columns.

        Returns:
            Record key to column name to exact Python value.

        Raises:
            LakeError: ``spark_failed``.
        """
        by_value = {key_value(self._layout, key): key for key in keys}
        if not by_value:
            return {}
        targets = {name: self._layout.schema.column(name).target for name in sorted(set(columns))}
        key_type = self._layout.arrow_schema(gone=False).field(self._layout.key_column).type
        values = pa.array(list(by_value), type=key_type)
        with spark_failures(self._layout, "reading the replica's rows"):
            wanted = self._session.createDataFrame(pa.table({_BASE_KEY: values}))
            key = f.col(quote(self._layout.key_column))
            # Literals let Delta skip files; the join finds the rows.
            held = self.frame().where(key.between(f.lit(min(by_value)), f.lit(max(by_value))))
            found = (
                held.join(f.broadcast(wanted), key == f.col(_BASE_KEY), "left_semi")
                .select(key.alias(_BASE_KEY), *(f.col(quote(name)) for name in targets.values()))
                .toArrow()
            )
        held_rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
        return {by_value[value]: dict(zip(targets, row, strict=True)) for value, *row in held_rows}

    def digests(self) -> DataFrame:
        """Of a table without a key: the digest of each row's copy, in the column ``d``."""
        return self.frame().select(f.substring(f.col(KEY_COLUMN), 1, DIGEST_LENGTH).alias("d"))

    def copies(self, digests: Iterable[str]) -> dict[str, int]:
        """How many copies of rows there are, in a table without a key.

        Args:
            digests: Of the rows; those that the replica has not are not in the answer.

        Raises:
            LakeError: ``spark_failed``.
        """
        wanted = pa.table({_BASE_KEY: pa.array(digests, pa.string())})
        if not wanted.num_rows:
            return {}
        with spark_failures(self._layout, "counting the replica's rows"):
            asked = f.broadcast(self._session.createDataFrame(wanted))
            held = self.digests().join(asked, f.col("d") == f.col(_BASE_KEY), "left_semi")
            found = held.groupBy("d").count().toArrow()
        return dict(zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True))
