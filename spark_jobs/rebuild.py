"""Rebuilds a replica from offset zero of its topic, beside the one that is served.

The whole topic up to a frontier is folded into a side table, ``_gN`` in the replica's folder.
Then ONE commit at the replica's own path brings the new rows, the new ``cdc.app`` and its
progress, and takes the old rows away: readers see the old or the new, never a mix. The source
is not touched. Killed at any step, the old replica is as it was, and the next rebuild begins
anew.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cdc.config import Config
from cdc.config.fields import parse_table_name
from cdc.errors import ConfigError, LakeError
from cdc.failpoints import failpoint
from cdc.lake import AppId, Replica, open_replica
from cdc.lakelock import hold_lake_lock
from cdc.names import TableId
from cdc.runtime import resolve_log
from spark_jobs.apply import Applier, ApplySettings, note_of
from spark_jobs.failures import spark_failures
from spark_jobs.layout import Layout, quote
from spark_jobs.log_source import Batch, fold_range, rows_of
from spark_jobs.log_state import LogAddress, LogState, TablePlan, plan_table, read_log_state
from spark_jobs.merge import Commit
from spark_jobs.replica import create_replica
from spark_jobs.session import build_session, jvm_pid

log = structlog.get_logger(__name__)

Progress = Callable[[dict[str, Any]], None]
_GENERATION: Final = re.compile(r"_g\d+")


def rebuild_table(
    applier: Applier, source: str, table: TableId, on_progress: Progress = lambda progress: None
) -> dict[str, Any]:
    """Rebuild one replica; apply leaves the table alone meanwhile and goes on from there.

    Args:
        applier: Of the lake; its caller holds the lake's lock.
        source: The source's name.
        table: The table.
        on_progress: Called with plain fields at each step, from this thread.

    Returns:
        table, position, version, generation, rows, seconds.

    Raises:
        LakeError: ``not_ready``, ``rebuild_differs``, and what folding and writing raise.
        LogError: As folding raises.
    """
    name = f"{source}.{table}"
    started = time.monotonic()
    with applier.paused(name):
        session, reader = applier.worker()
        state = read_log_state(reader, source)
        old = open_replica(applier.path(source, table), table=name, check_by_hand=False)
        plan = _plan(applier, state, table, name)
        path = applier.path(source, table)
        app = AppId(
            source,
            plan.record.topic_id or "",
            1 if old is None else old.app.generation + 1,
            1,
            plan.bounds.frontier.epoch,
        )
        position = str(plan.bounds.frontier)
        _remove_side_tables(path)
        on_progress({"step": "folding the log", "offsets": plan.offset_count, "to": position})
        settings = applier.settings
        batch = fold_range(
            session,
            applier.address,
            reader,
            plan,
            None,
            path,
            small=settings.small_range,
            most_bytes=settings.most_bytes,
        )
        side = f"{path}/_g{app.generation}"
        try:
            rows = batch.keys - batch.gone
            on_progress({"step": "writing the new table", "rows": rows})
            _write_side(session, side, plan.layout, batch, app, rows)
        finally:
            batch.release()
        failpoint("rebuild_side_written")
        on_progress({"step": "swapping", "rows": rows})
        commit = Commit(str(app), note_of(plan, "rebuild"))
        _swap(session, path, side, plan.layout, commit)
        failpoint("rebuild_swapped")
        version = _check_swapped(path, plan.layout, commit, old)
        _remove_side_tables(path)
    seconds = round(time.monotonic() - started, 2)
    log.info("rebuilt", table=name, position=position, rows=rows, version=version, seconds=seconds)
    return {
        "table": name,
        "position": position,
        "version": version,
        "generation": app.generation,
        "rows": rows,
        "seconds": seconds,
    }


def rebuild(
    config: Config, table: str, on_progress: Progress = lambda progress: None
) -> dict[str, Any]:
    """Rebuild a replica in this process, when no daemon runs: takes the lake's lock.

    Args:
        config: The project.
        table: ``source.schema.table``.
        on_progress: As for ``rebuild_table``.

    Returns:
        As ``rebuild_table``.

    Raises:
        ConfigError: ``unknown_table``.
        LakeError: ``lake_locked``, and as ``rebuild_table``.
    """
    source, id = replica_name(config, table)
    bootstrap, security = resolve_log(config)
    address = LogAddress(bootstrap, security, config.log.topic_prefix)
    with hold_lake_lock(config.lake.path) as lock:
        on_progress({"step": "starting Spark"})
        spark = build_session(config.spark.master, config.spark.driver_memory, config.spark.conf)
        lock.record_jvm(jvm_pid(spark))
        applier = Applier(spark, address, settings_of(config))
        try:
            return rebuild_table(applier, source, id, on_progress)
        finally:
            applier.close()
            spark.stop()


def settings_of(config: Config) -> ApplySettings:
    """How a project wants its log applied."""
    return ApplySettings(
        config.lake.path,
        max_records=config.apply.max_records,
        history=config.log.history.total_seconds(),
    )


def replica_name(config: Config, text: str) -> tuple[str, TableId]:
    """Source and table of ``source.schema.table``.

    Raises:
        ConfigError: ``unknown_table``.
    """
    source, _, rest = text.partition(".")
    try:
        table = parse_table_name(rest)
    except ValueError:
        table = None
    known = config.sources.get(source)
    if table is None or known is None or table not in known.table_ids:
        names = [f"{name}.{id}" for name, one in config.sources.items() for id in one.table_ids]
        raise ConfigError(
            "unknown_table",
            f"{text!r} is not a table of cdc.yaml",
            remedy="one of " + ", ".join(names[:20]),
        )
    return source, table


def _plan(applier: Applier, state: LogState | None, table: TableId, name: str) -> TablePlan:
    record = None if state is None else state.control.tables.get(table)
    if state is None or record is None or state.frontier_of(record) is None:
        found = "not in the log yet" if record is None else record.state
        raise LakeError(
            "not_ready",
            f"the table is {found}: there is nothing to rebuild from",
            table=name,
            remedy="cdc status says what it waits for",
        )
    reader = applier.worker()[1]
    plan = plan_table(applier.admin, reader, state, table, None)
    assert plan is not None  # noqa: S101 - without a replica there is always a plan
    return plan


def _write_side(
    session: SparkSession, side: str, layout: Layout, batch: Batch, app: AppId, rows: int
) -> None:
    create_replica(session, side, layout, str(app))
    failpoint("rebuild_side_created")
    with spark_failures(layout, "writing the new table"):
        if batch.frame is not None:
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
    columns = (f.col(quote(name)) for name in layout.names)
    return session.read.format("delta").load(side).select(*columns)


def _swap(session: SparkSession, path: str, side: str, layout: Layout, commit: Commit) -> None:
    with spark_failures(layout, "swapping in the new table"):
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
