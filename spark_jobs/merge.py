"""Writes a batch into a replica: one Delta commit that holds rows, progress and note."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.errors import LakeError
from cdc.failpoints import failpoint
from cdc.lake import CommitNote, Replica, open_replica
from spark_jobs.direct_write import MOST_REWRITTEN, only_adds, suits, write_directly
from spark_jobs.failures import spark_failures
from spark_jobs.layout import GONE_COLUMN, Layout, quote, spark_type
from spark_jobs.log_source import Batch, rows_of
from spark_jobs.replica import sql_text
from spark_jobs.session import configured, planned_for

#: Up to so many keys are overwritten by literals, whose cost does not grow with the table.
FEW_KEYS: Final = 2000

_APP_CONF: Final = "spark.databricks.delta.write.txnAppId"
_VERSION_CONF: Final = "spark.databricks.delta.write.txnVersion"
_NOTE_CONF: Final = "spark.databricks.delta.commitInfo.userMetadata"
_MATERIALIZE_CONF: Final = "spark.databricks.delta.merge.materializeSource"
_SOURCE_VIEW: Final = "_cdc_batch"
_TOUCHED_KEY: Final = "_cdc_touched"


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit records beside rows.

    Args:
        app: Text of ``cdc.app``.
        note: Position, ends and so on; the transaction version is the position's LSN.
    """

    app: str
    note: CommitNote

    def options(self) -> dict[str, str]:
        """Of a DataFrame writer."""
        return {
            "txnAppId": self.app,
            "txnVersion": str(self.note.position.lsn),
            "userMetadata": self.note.to_json(),
        }


def write_batch(
    session: SparkSession,
    replica: Replica,
    layout: Layout,
    batch: Batch,
    commit: Commit,
    *,
    truncated: bool = False,
    loses_columns: bool = False,
    few_keys: int = FEW_KEYS,
    most_rewritten: int = MOST_REWRITTEN,
) -> str:
    """Write a batch in one commit.

    Args:
        session: A worker session of the calling thread.
        replica: As the batch was planned from; it is thrown away if that has changed.
        layout: The replica's columns.
        batch: One row per key.
        commit: What to record.
        truncated: The batch replaces all rows.
        loses_columns: Columns leave the table: every row is written anew.
        few_keys: Most keys that are overwritten by literals.
        most_rewritten: Most bytes of files that are written anew without Spark.

    Returns:
        How it was written: ``empty``, ``replace``, ``append``, ``overwrite``, ``merge`` or
        ``rewrite``.

    Raises:
        LakeError: ``progress_changed`` (somebody wrote it since the plan), ``write_skipped``,
            ``restored_by_hand``, ``write_conflict``, ``spark_failed``.
    """
    table = _check_unchanged(replica, layout)
    way = "rewrite" if loses_columns else _way(replica, batch, truncated, few_keys)
    if not suits(replica, layout, batch, way, most_rewritten) or not write_directly(
        table, layout, batch, way, commit.app, commit.note
    ):
        with spark_failures(layout, "writing its Delta table"):
            if loses_columns:
                _write_anew(session, replica, layout, batch, commit, truncated)
            else:
                with planned_for(session, batch.keys, _held_bytes(replica)):
                    _write(session, replica, layout, batch, commit, way)
    failpoint("after_delta_commit")
    _check_written(replica, layout, commit)
    return way


def _way(replica: Replica, batch: Batch, truncated: bool, few_keys: int) -> str:
    if truncated:
        return "replace"
    if not batch.keys:
        return "empty"
    if replica.position is None:
        return "append"
    return "overwrite" if batch.keys <= few_keys else "merge"


def _write(
    session: SparkSession,
    replica: Replica,
    layout: Layout,
    batch: Batch,
    commit: Commit,
    way: str,
) -> None:
    path = replica.path
    options = commit.options()
    if batch.gone == batch.keys and way in ("empty", "replace"):
        # From Arrow, for which Spark starts no Python.
        empty = layout.arrow_schema(gone=False).empty_table()
        rows = session.createDataFrame(empty, layout.spark_schema(gone=False))
    else:
        rows = rows_of(batch, layout.names)
    if way == "merge":
        with configured(session, _commit_confs(commit, materialize=batch.staged is None)):
            batch.frame.createOrReplaceTempView(_SOURCE_VIEW)
            try:
                session.sql(_merge_statement(path, layout, batch.key_range(layout.key_column)))
            finally:
                session.catalog.dropTempView(_SOURCE_VIEW)
        return
    if way == "overwrite":
        keys = batch.key_values(layout.key_column)
        where = f"{quote(layout.key_column)} IN ({', '.join(literal(k, layout) for k in keys)})"
        options["replaceWhere"] = where
        rows = rows.coalesce(1)
    writer = rows.write.format("delta").mode(
        "append" if only_adds(replica.table, way) else "overwrite"
    )
    writer.options(**options).save(path)


def _write_anew(
    session: SparkSession,
    replica: Replica,
    layout: Layout,
    batch: Batch,
    commit: Commit,
    truncated: bool,
) -> None:
    """All rows, with the columns that the table has at the frontier.

    In the commit that brings the batch, so that no version has the old values of a column that
    is gone at its position.
    """
    rows = _rows_before(session, replica, layout, batch, truncated)
    if batch.keys:
        rows = rows.unionByName(rows_of(batch, layout.names))
    nothing = [f.lit(None).cast(spark_type(ddl)).alias(name) for name, ddl in layout.kept]
    writer = rows.select("*", *nothing).write.format("delta").mode("overwrite")
    if set(replica.columns) != {name for name, _ in layout.table_columns}:
        writer = writer.option("overwriteSchema", "true")
    writer.options(**commit.options()).save(replica.path)


def _rows_before(
    session: SparkSession, replica: Replica, layout: Layout, batch: Batch, truncated: bool
) -> DataFrame:
    """The replica's rows that the batch leaves, without columns that are gone."""
    key = f.col(quote(layout.key_column))
    held = session.read.format("delta").option("versionAsOf", str(replica.version))
    rows = held.load(replica.path).select(*(f.col(quote(name)) for name in layout.names))
    if truncated:
        return rows.limit(0)
    if not batch.keys:
        return rows
    touched = batch.frame.select(key.alias(_TOUCHED_KEY))
    return rows.join(touched, key == f.col(_TOUCHED_KEY), "left_anti")


def literal(value: Any, layout: Layout) -> str:
    """A value of the key column in Spark's SQL."""
    if isinstance(value, str):
        return sql_text(value)
    if isinstance(value, dt.date):
        return f"DATE'{value.isoformat()}'"
    # With the column's own type no cast comes between it and its statistics.
    suffix = {"BIGINT": "L", "SMALLINT": "S"}.get(layout.key_type, "")
    return f"{int(value)}{suffix}"


def _merge_statement(path: str, layout: Layout, key_range: tuple[Any, Any]) -> str:
    key, gone = quote(layout.key_column), quote(GONE_COLUMN)
    low, high = (literal(value, layout) for value in key_range)
    names = [quote(name) for name in layout.names]
    updates = ", ".join(f"t.{name} = s.{name}" for name in names)
    return (
        f"MERGE INTO delta.{quote(path)} AS t USING {_SOURCE_VIEW} AS s "  # noqa: S608 - quoted
        f"ON t.{key} <=> s.{key} AND t.{key} BETWEEN {low} AND {high} "
        f"WHEN MATCHED AND s.{gone} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND NOT s.{gone} THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join('s.' + name for name in names)})"
    )


def _commit_confs(commit: Commit, *, materialize: bool) -> dict[str, str]:
    """MERGE takes these from the session only.

    Its source is read twice: unless it is a file of ours, Delta keeps a copy.
    """
    options = commit.options()
    return {
        _APP_CONF: options["txnAppId"],
        _VERSION_CONF: options["txnVersion"],
        _NOTE_CONF: options["userMetadata"],
        _MATERIALIZE_CONF: "auto" if materialize else "none",
    }


def _held_bytes(replica: Replica) -> int:
    """Of the replica's files."""
    sizes = pa.table(replica.table.get_add_actions()).column("size_bytes")
    return pc.sum(sizes).as_py() or 0


def _check_unchanged(planned: Replica, layout: Layout) -> DeltaTable:
    """The table, opened again."""
    now = open_replica(planned.path, table=layout.table)
    if (
        now is None
        or now.position != planned.position
        or now.app != planned.app
        or now.version != planned.version
    ):
        raise LakeError(
            "progress_changed",
            "somebody else wrote the Delta table since this batch was planned; it is thrown away",
            table=layout.table,
            remedy="it is planned again; only cdc may write the tables of the lake",
        )
    return now.table


def _check_written(planned: Replica, layout: Layout, commit: Commit) -> None:
    """Delta skips a write silently when it takes it for one that it has."""
    now = open_replica(planned.path, table=layout.table)
    if now is None or now.position != commit.note.position or now.version <= planned.version:
        raise LakeError(
            "write_skipped",
            "Delta did not take the batch",
            table=layout.table,
            position=str(commit.note.position),
            remedy=f"cdc rebuild {layout.table} --from-offset 0",
        )
