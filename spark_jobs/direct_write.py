"""Writes a small batch without Spark: deltalake makes the same commit in milliseconds.

It writes files anew that hold one of the batch's keys, where Spark marks their rows as deleted.
So its cost grows with these files, and Spark's does not.
"""

from __future__ import annotations

import bisect
import datetime as dt
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError

from cdc.errors import LakeError
from cdc.lake import READ_VERSION, CommitNote, Replica
from spark_jobs.layout import GONE_COLUMN, Layout
from spark_jobs.log_source import Batch

log = structlog.get_logger(__name__)

#: Up to so many bytes of a batch in memory; above it, several tasks of Spark are quicker.
MOST_WRITTEN: Final = 64 * 2**20
#: Up to so many bytes of files are written anew. Spark would take longer up to some 200 MiB, but
#: what was there stays on the disk as an older version, with every commit.
MOST_REWRITTEN: Final = 2**20
#: What deltalake writes as Spark does; tables with other features, such as column mapping, are
#: left to Spark.
_FEATURES: Final = frozenset(("appendOnly", "deletionVectors", "invariants", "timestampNtz"))
#: Of Delta: every so many versions it writes a checkpoint and removes old commits.
_CHECKPOINT_INTERVAL: Final = ("delta.checkpointInterval", 10)
_NO_UPKEEP: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def suits(replica: Replica, layout: Layout, batch: Batch, way: str, most_rewritten: int) -> bool:
    """Whether a batch can be written without Spark, and sooner.

    Versions that bring a checkpoint are Spark's: its upkeep of the log stays the only one.

    Args:
        replica: Before the batch.
        layout: Its columns.
        batch: One row per key.
        way: ``empty``, ``append``, ``replace`` or ``overwrite``; any other is Spark's.
        most_rewritten: Bytes of files that are written anew, at most; 0 leaves all to Spark.
    """
    if way not in ("empty", "append", "replace", "overwrite") or not most_rewritten:
        return False
    if batch.keys and (batch.table is None or batch.table.nbytes > MOST_WRITTEN):
        return False
    features = replica.table.protocol().writer_features
    if features is None or not _FEATURES.issuperset(features):
        return False
    name, default = _CHECKPOINT_INTERVAL
    interval = int(replica.table.metadata().configuration.get(name, default))
    if (replica.version + 1) % interval == 0:
        return False
    return way != "overwrite" or _touched_bytes(replica.table, layout, batch) <= most_rewritten


def write_directly(
    table: DeltaTable, layout: Layout, batch: Batch, way: str, app: str, note: CommitNote
) -> bool:
    """Write a batch that ``suits``.

    Args:
        table: The replica's, at the version that the batch was planned from; it follows.
        layout: The replica's columns.
        batch: One row per key.
        way: As of ``suits``.
        app: Text of ``cdc.app``.
        note: What to record.

    Returns:
        Whether it did; when deltalake fails, nothing was written and Spark can.

    Raises:
        LakeError: ``write_conflict``: another writer.
    """
    mode: dict[str, Any] = {"mode": "append" if only_adds(table, way) else "overwrite"}
    if way == "overwrite":
        mode["predicate"] = key_predicate(layout, batch)
    recorded = CommitProperties(
        custom_metadata={
            "userMetadata": note.to_json(),
            # Which Spark records by itself.
            READ_VERSION: str(table.version()),
        },
        app_transactions=[Transaction(app, note.position.lsn)],
    )
    try:
        write_deltalake(
            table,
            _rows(table, batch),
            **mode,
            commit_properties=recorded,
            post_commithook_properties=_NO_UPKEEP,
        )
    except CommitFailedError as problem:
        raise LakeError(
            "write_conflict",
            "somebody else wrote the Delta table while its batch was written "
            f"({type(problem).__name__})",
            table=layout.table,
            remedy="it is tried again; only cdc may write the tables of the lake",
        ) from None
    except (DeltaError, OSError, ValueError) as problem:
        # Its text may quote keys.
        log.warning("left_to_spark", table=layout.table, error=type(problem).__name__)
        return False
    return True


def only_adds(table: DeltaTable, way: str) -> bool:
    """Whether a batch is appended.

    The first rows overwrite: the table is empty before them, whatever is in it.
    """
    return way == "empty" or (way == "append" and not table.file_uris())


def key_predicate(layout: Layout, batch: Batch) -> str:
    """The rows of a batch's keys, in the SQL of deltalake."""
    name = layout.key_column.replace('"', '""')
    keys = batch.key_values(layout.key_column)
    return f'"{name}" IN ({", ".join(map(_literal, keys))})'


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    return str(int(value))


def _rows(table: DeltaTable, batch: Batch) -> pa.Table:
    """The rows of a batch that are there, in the columns of the replica."""
    schema = pa.schema(table.schema().to_arrow())
    if batch.table is None:
        return schema.empty_table()
    rows = batch.table.filter(pc.invert(batch.table.column(GONE_COLUMN)))
    held = set(rows.column_names)
    columns = [
        # A column that the source has dropped.
        rows.column(field.name) if field.name in held else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def _touched_bytes(table: DeltaTable, layout: Layout, batch: Batch) -> int:
    """Of the files that may hold one of the batch's keys, by their statistics."""
    files = pa.table(table.get_add_actions(flatten=True))
    sizes = files.column("size_bytes").to_pylist()
    bounds = [f"{end}.{layout.key_column}" for end in ("min", "max")]
    if not set(bounds) <= set(files.column_names):
        return sum(sizes)
    keys = sorted(batch.key_values(layout.key_column))
    touched = 0
    for size, low, high in zip(
        sizes, *(files.column(name).to_pylist() for name in bounds), strict=True
    ):
        first = 0 if low is None else bisect.bisect_left(keys, low)
        if high is None or (first < len(keys) and keys[first] <= high):
            touched += size
    return touched
