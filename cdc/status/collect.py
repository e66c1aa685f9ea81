"""Collects the status; what cannot be reached is told, and the rest is shown all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from cdc.errors import CdcError, LogError
from cdc.names import TableId, frontier_topic, lake_folder
from cdc.position import Position, format_lsn

if TYPE_CHECKING:
    from cdc.config import Config
    from cdc.control import ControlState, LoadRecord, TableRecord
    from cdc.frontier import Ends, FrontierView
    from cdc.lake import Replica
    from cdc.log.admin import LogAdmin
    from cdc.log.reader import LogReader
    from cdc.schema import TableSchema

_LOG_TIMEOUT_S = 10.0
NOT_STARTED = "NotStarted"
UNKNOWN = "Unknown"


def collect_status(config: Config) -> dict[str, Any]:
    """Everything that ``cdc status --json`` shows, but for the daemon.

    Returns:
        ``project``; ``sources``: name to state, frontier (``position``, ``end_lsn``,
        ``last_commit_us``, ``age_seconds``), ``slot``, ``slot_lag_bytes``, ``tables``,
        ``error`` (the log's) and ``source_error`` (the server's); a table's ``loading`` is its
        load under way, as far as control knows: load, state, rows, estimate, chunks_done, chunks,
        rows_per_second, seconds_left; its ``columns_apart`` are those that only one of source and
        derived table has, by its schema policy: name, why (``dropped`` at the source, NULL in the
        derived table; ``ignored``: not in the derived table) and since (position); ``replicas``:
        ``source.schema.table`` to position, version, ``behind_records`` (offsets of the topic,
        so an upper bound), ``behind_seconds``, ``out_of_range`` (column to number of values that
        its Delta type cannot hold) and ``error``. Unknown figures are None.
    """
    sources: dict[str, Any] = {}
    replicas: dict[str, Any] = {}
    with ThreadPoolExecutor(2 * len(config.sources)) as pool:
        slots = {name: pool.submit(_slot, config, name) for name in config.sources}
        logs = {name: pool.submit(_source, config, name) for name in config.sources}
        for name in config.sources:
            sources[name], found = _outcome(logs[name])
            replicas.update(found)
            slot, error = _slot_outcome(slots[name])
            lag = None if slot is None else slot.get("lag_bytes")
            sources[name] |= {"slot": slot, "slot_lag_bytes": lag, "source_error": error}
    return {"project": config.project, "sources": sources, "replicas": replicas}


def _slot(config: Config, source: str) -> dict[str, Any]:
    from cdc.runtime import source_conninfo
    from cdc.status.source_server import slot_status

    settings = config.sources[source]
    return slot_status(source_conninfo(config, settings), settings.slot_name)


def _slot_outcome(
    slot: Future[dict[str, Any]],
) -> tuple[dict[str, Any] | None, dict[str, str | None] | None]:
    try:
        return slot.result(), None
    except CdcError as error:
        return None, error.to_json()


def _outcome(
    source: Future[tuple[dict[str, Any], dict[str, Any]]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        return source.result()
    except CdcError as error:
        return {**_no_frontier(), "state": UNKNOWN, "tables": {}, "error": error.to_json()}, {}


def _no_frontier() -> dict[str, Any]:
    return {"position": None, "end_lsn": None, "last_commit_us": None, "age_seconds": None}


def _source(config: Config, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A source's log and its replicas."""
    from cdc.load_progress import loads_under_way
    from cdc.log.admin import LogAdmin
    from cdc.log.reader import LogReader
    from cdc.log.settings import COMMAND_REFUSED_AFTER
    from cdc.runtime import resolve_log
    from cdc.states import REMOVED

    bootstrap, security = resolve_log(config)
    prefix = config.log.topic_prefix
    admin = LogAdmin(bootstrap, security, timeout=_LOG_TIMEOUT_S)
    with LogReader(
        bootstrap,
        security,
        topic_prefix=prefix,
        timeout=_LOG_TIMEOUT_S,
        refused_after=COMMAND_REFUSED_AFTER,
    ) as reader:
        try:
            view, control = reader.newest(source)
        except LogError as error:
            if error.code != "topic_missing":
                raise
            status = {**_no_frontier(), "state": NOT_STARTED, "tables": {}, "error": None}
            return status, {}
        there = (id for id, record in control.tables.items() if record.state != REMOVED)
        tables = config.sources[source].with_matches(there)
        loading = loads_under_way(control)
        status = {
            **_frontier(admin, frontier_topic(prefix, source), view),
            "state": _state(control),
            "tables": {str(table): _table(control, table, loading.get(table)) for table in tables},
            "error": None,
        }
        replicas = {
            f"{source}.{table}": _replica(config, reader, source, table, control, view)
            for table in tables
        }
    return status, replicas


def _frontier(admin: LogAdmin, topic: str, view: FrontierView | None) -> dict[str, Any]:
    if view is None:
        return _no_frontier()
    written_ms = admin.written_ms(topic)
    age = None if written_ms is None else max(0.0, time.time() - written_ms / 1000)
    return {
        "position": str(view.position),
        "end_lsn": format_lsn(view.record.end_lsn),
        "last_commit_us": view.record.max_commit_us,
        "age_seconds": None if age is None else round(age, 3),
    }


def _state(control: ControlState) -> str:
    """The source's: that of its table that is farthest from Ready; it goes on without some."""
    from cdc.states import ADDED, CATCHING_UP, ERRORED, READY, SNAPSHOTTING

    states = {record.state for record in control.tables.values() if record.aside is None}
    for state in (ERRORED, ADDED, SNAPSHOTTING, CATCHING_UP):
        if state in states:
            return state
    # Patterns may not match anything yet.
    return NOT_STARTED if control.offset is None and not control.tables else READY


def _table(control: ControlState, table: TableId, loading: LoadRecord | None) -> dict[str, Any]:
    record = control.tables.get(table)
    if record is None:
        return {"state": NOT_STARTED, "load": None, "topic": None, "loading": None}
    load = control.loads.get((table, record.load))
    return {
        "state": record.state,
        "load": record.load,
        "topic": record.topic,
        "loaded_rows": None if load is None else load.rows,
        "loading": None if loading is None else _loading(loading),
        "ready_from": _text(record.ready_from),
        "last_good": _text(record.last_good),
        "reason": record.reason,
        "remedy": record.remedy,
        "columns_apart": list(_columns_apart(control, record)),
    }


def _columns_apart(control: ControlState, record: TableRecord) -> Iterator[dict[str, str]]:
    versions = control.schemas.get((record.id, record.load), {})
    newest = control.newest_schema(record.id, record.load)
    if newest is None:
        return
    for column in newest.kept:
        since = min(v for v, schema in versions.items() if column in schema.dropped)
        yield _apart(column.name, "dropped", versions[since])
    for column in newest.ignored:
        since = min(v for v, schema in versions.items() if column in schema.columns)
        yield _apart(column.name, "ignored", versions[since])


def _apart(name: str, why: str, first: TableSchema) -> dict[str, str]:
    return {"name": name, "why": why, "since": str(first.valid_from)}


def _loading(load: LoadRecord) -> dict[str, Any]:
    from cdc.load_progress import chunks_done

    return {
        "load": load.load,
        "state": load.state,
        "rows": load.rows,
        "estimate": load.estimate,
        "chunks_done": chunks_done(load),
        "chunks": load.chunks,
        # Two moments make a speed; a daemon that runs knows it.
        "rows_per_second": None,
        "seconds_left": None,
    }


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


def _replica(
    config: Config,
    reader: LogReader,
    source: str,
    table: TableId,
    control: ControlState,
    view: FrontierView | None,
) -> dict[str, Any]:
    from cdc.lake import open_replica

    status: dict[str, Any] = {
        "position": None,
        "end_lsn": None,
        "version": None,
        "behind_records": None,
        "behind_seconds": None,
        "out_of_range": {},
        "error": None,
    }
    try:
        replica = open_replica(
            lake_folder(config.lake.path, source, *table), table=f"{source}.{table}"
        )
    except CdcError as error:
        return {**status, "error": error.to_json()}
    if replica is not None:
        position = replica.position
        status |= {
            "position": _text(position),
            "end_lsn": None if position is None else format_lsn(position.lsn),
            "version": replica.version,
            "out_of_range": dict(replica.out_of_range),
        }
    record = control.tables.get(table)
    if record is not None and view is not None:
        status |= _behind(reader, source, record, view, replica)
    return status


def _behind(
    reader: LogReader,
    source: str,
    record: TableRecord,
    view: FrontierView,
    replica: Replica | None,
) -> dict[str, Any]:
    """How much of the table's log the replica does not have yet."""
    applied = replica is not None and replica.position is not None
    same = replica is not None and replica.app.topic_id == record.topic_id
    starts: Mapping[int, int] = {}
    if applied and same and replica is not None and replica.position is not None:
        known = replica.ends
        if known is None:
            ends: Ends | None = reader.ends_at(source, replica.position)
            known = {} if ends is None else ends.get(record.topic, {})
        starts = known
    offsets = sum(
        max(0, end - starts.get(partition, 0))
        for partition, end in view.ends.get(record.topic, {}).items()
    )
    seconds: float | None = 0.0
    if offsets or not applied:
        note = None if replica is None else replica.note
        seconds = (
            None
            if note is None
            else round(max(0, view.record.max_commit_us - note.commit_us) / 1e6, 3)
        )
    return {"behind_records": offsets, "behind_seconds": seconds}
