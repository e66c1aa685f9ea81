"""Builds a generation of a replica beside the one that is served, and swaps it in.

The whole topic up to a frontier is folded into a side table, ``_gN`` in the replica's folder.
Then ONE commit at the replica's own path brings the new rows, the new ``cdc.app`` and its
progress, and takes the old rows away: readers see the old or the new, never a mix. Killed at
any step, the old replica is as it was, and the next build begins anew.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.errors import LakeError
from cdc.failpoints import failpoint
from cdc.lake import AppId, Replica, open_replica
from cdc.log.reader import LogReader
from spark_jobs.failures import spark_failures
from spark_jobs.layout import Layout, quote
from spark_jobs.log_source import Batch, fold_range, rows_of
from spark_jobs.log_state import LogAddress, TablePlan
from spark_jobs.merge import Commit
from spark_jobs.replica import create_replica
from spark_jobs.session import planned_for

Progress = Callable[[dict[str, Any]], None]
_GENERATION: Final = re.compile(r"_g\d+")


@dataclass(frozen=True, slots=True)
class Builder:
    """What a generation is built with; of one thread.

    Args:
        session: A worker session.
        address: Of the log.
        reader: Of the log.
        small_range: Most offsets that the driver folds itself.
        most_bytes: Most memory that it takes for that.
    """

    session: SparkSession
    address: LogAddress
    reader: LogReader
    small_range: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that is served now.

    Args:
        app: Its ``cdc.app``.
        version: Delta's, of the commit that brought it.
        rows: That it has.
    """

    app: AppId
    version: int
    rows: int


def build_generation(
    builder: Builder,
    plan: TablePlan,
    path: str,
    old: Replica | None,
    on_progress: Progress = lambda progress: None,
) -> Generation:
    """Fold a topic from offset zero, and serve the result; the caller keeps apply away.

    Args:
        builder: Of the calling thread.
        plan: Of the whole topic: made without a replica.
        path: The replica's folder.
        old: What is served now, if anything.
        on_progress: Called with plain fields at each step.

    Raises:
        LakeError: ``rebuild_differs``, ``write_skipped``, and what folding and writing raise.
        LogError: As folding raises.
    """
    app = AppId(
        plan.source,
        plan.record.topic_id or "",
        1 if old is None else old.app.generation + 1,
        1,
        plan.bounds.frontier.epoch,
    )
    position = str(plan.bounds.frontier)
    _remove_side_tables(path)
    on_progress({"step": "folding the log", "offsets": plan.offset_count, "to": position})
    batch = fold_range(
        builder.session,
        builder.address,
        builder.reader,
        plan,
        None,
        path,
        small=builder.small_range,
        most_bytes=builder.most_bytes,
    )
    side = f"{path}/_g{app.generation}"
    rows = batch.keys - batch.gone
    try:
        on_progress({"step": "writing the new table", "rows": rows})
        _write_side(builder.session, side, plan.layout, batch, app, rows)
    finally:
        batch.release()
    failpoint("rebuild_side_written")
    on_progress({"step": "swapping", "rows": rows})
    commit = Commit(str(app), plan.note("rebuild", batch.out_of_range))
    _swap(builder.session, path, side, plan.layout, commit, rows)
    failpoint("rebuild_swapped")
    version = _check_swapped(path, plan.layout, commit, old)
    _remove_side_tables(path)
    return Generation(app, version, rows)


def _write_side(
    session: SparkSession, side: str, layout: Layout, batch: Batch, app: AppId, rows: int
) -> None:
    create_replica(session, side, layout, str(app))
    failpoint("rebuild_side_created")
    with spark_failures(layout, "writing the new table"), planned_for(session, batch.keys):
        if batch.keys:
            rows_of(batch, layout.names).write.format("delta").mode("append").save(side)
        key = f.col(quote(layout.key_column))
        found = _side(session, side, layout).agg(
            f.count(f.lit(1)).alias("rows"), f.count_distinct(key).alias("keys")
        )
        row = found.first()
    if row is None or (row["rows"], row["keys"]) != (rows, rows):
        raise LakeError(
            "rebuild_differs",
            "the new table does not have one row for each key of the fold",
            table=layout.table,
        )


def _side(session: SparkSession, side: str, layout: Layout) -> DataFrame:
    columns = (f.col(quote(name)) for name, _ in layout.table_columns)
    return session.read.format("delta").load(side).select(*columns)


def _swap(
    session: SparkSession, path: str, side: str, layout: Layout, commit: Commit, rows: int
) -> None:
    with spark_failures(layout, "swapping in the new table"), planned_for(session, rows):
        writer = _side(session, side, layout).writeTo(f"delta.{quote(path)}").using("delta")
        for name, value in layout.properties(commit.app).items():
            writer = writer.tableProperty(name, value)
        for name, value in commit.options().items():
            writer = writer.option(name, value)
        writer.createOrReplace()


def _check_swapped(path: str, layout: Layout, commit: Commit, old: Replica | None) -> int:
    new = open_replica(path, table=layout.table)
    if (
        new is None
        or str(new.app) != commit.app
        or new.position != commit.note.position
        or (old is not None and new.version != old.version + 1)
    ):
        raise LakeError(
            "write_skipped",
            "Delta did not take the new table in one commit",
            table=layout.table,
            remedy=f"cdc rebuild {layout.table} --from-offset 0",
        )
    return new.version


def _remove_side_tables(path: str) -> None:
    """What an earlier rebuild left; the replica's files never refer to it."""
    folder = Path(path)
    if folder.is_dir():
        for entry in folder.iterdir():
            if _GENERATION.fullmatch(entry.name):
                shutil.rmtree(entry)
