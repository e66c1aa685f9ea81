"""``cdc rebuild``: folds a replica anew from offset zero of its topic, not from the source."""

from __future__ import annotations

import time
from typing import Any

import structlog

from cdc.config import Config
from cdc.errors import ConfigError, LakeError
from cdc.lake import open_replica
from cdc.lakelock import hold_lake_lock
from cdc.names import TableId
from cdc.runtime import resolve_log
from cdc.table_names import parse_table_name
from spark_jobs.apply import Applier, ApplySettings
from spark_jobs.generation import Progress, build_generation
from spark_jobs.log_state import LogAddress, LogState, TablePlan, plan_table
from spark_jobs.session import build_session, jvm_pid

log = structlog.get_logger(__name__)


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
        state = applier.log_state(applier.worker()[1], source)
        old = open_replica(applier.path(source, table), table=name, check_by_hand=False)
        plan = _plan(applier, state, table, name)
        built = build_generation(
            applier.builder(), plan, applier.path(source, table), old, on_progress
        )
    seconds = round(time.monotonic() - started, 2)
    result = {
        "table": name,
        "position": str(plan.bounds.frontier),
        "version": built.version,
        "generation": built.app.generation,
        "rows": built.rows,
        "seconds": seconds,
    }
    log.info("rebuilt", **result)
    return result


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
        policies=lambda source, table: config.sources[source].policies_of(table),
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
    if table is None or known is None or not known.covers(table):
        names = [f"{name}.{one.name}" for name, s in config.sources.items() for one in s.tables]
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
