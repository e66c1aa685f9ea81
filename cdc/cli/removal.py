"""Takes a source out of Postgres, the log and the lake, so that its next start begins anew.

Only what the source's own control records name is removed. The control topic goes last, so a
removal that was cut off is finished by the next one.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import EnvironmentProblem, LogError, SourceError

if TYPE_CHECKING:
    from cdc.config import Config, SourceConfig
    from cdc.control import ControlState

_SLOT_FREE_WITHIN_S = 10.0


def remove_source(config: Config, source: SourceConfig) -> list[str]:
    """Drop slot, publication, topics and replicas of one source; says what was there.

    The caller has made sure that no daemon of this project runs.

    Raises:
        CdcError: A server cannot be reached, the slot is in use, or the lake is.
    """
    from cdc.log.admin import LogAdmin
    from cdc.names import control_topic, frontier_topic
    from cdc.runtime import resolve_log

    bootstrap, security = resolve_log(config)
    prefix = config.log.topic_prefix
    state = _control(bootstrap, security, prefix, source.name)
    removed = [] if state is None else _remove_from_server(config, source, state)
    removed += remove_replicas(config, replicas(config, source, state))
    if state is not None:
        admin = LogAdmin(bootstrap, security)
        topics = admin.topic_ids(_topics(state))
        admin.delete_topics([*topics, frontier_topic(prefix, source.name)])
        admin.delete_topics([control_topic(prefix, source.name)])
        removed.append(f"{len(topics)} topic(s) of source {source.name}")
    return removed


def _topics(state: ControlState) -> set[str]:
    """Of all loads, with the spools where events wait; most of these are gone by now."""
    # A table that was never captured has none.
    topics = {record.topic for record in state.tables.values() if record.topic}
    for load in state.loads.values():
        topics.add(load.topic)
        if load.spool is not None:
            topics.add(load.spool)
    return topics


def remove_replicas(config: Config, folders: list[Path]) -> list[str]:
    """Remove derived tables, as the one writer of the lake.

    Raises:
        LakeError: ``lake_locked``.
        EnvironmentProblem: ``not_removed``.
    """
    from cdc.lakelock import hold_lake_lock

    if folders:
        with hold_lake_lock(config.lake.path):
            for folder in folders:
                remove_folder(folder)
    return [f"derived table {folder}" for folder in folders]


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it.

    Raises:
        EnvironmentProblem: ``not_removed``.
    """
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise EnvironmentProblem(
            "not_removed", f"{error.filename} cannot be removed: {error.strerror}"
        ) from None


def _control(
    bootstrap: str, security: dict[str, str], prefix: str, source: str
) -> ControlState | None:
    from cdc.log.reader import LogReader

    with LogReader(bootstrap, security, topic_prefix=prefix) as reader:
        try:
            return reader.control_state(source)
        except LogError as error:
            if error.code != "topic_missing":
                raise
            return None


def _remove_from_server(config: Config, source: SourceConfig, state: ControlState) -> list[str]:
    from cdc.runtime import source_conninfo
    from connectors.postgres.client import connect_sql
    from connectors.postgres.publication import drop_publication, inspect_publication

    slots = {load.slot for load in state.loads.values() if load.slot}
    if state.source is not None:
        slots.add(state.source.slot)
    removed = []
    with connect_sql(source_conninfo(config, source)) as connection:
        for slot in sorted(slots):
            if _drop_slot(connection, slot, source):
                removed.append(f"slot {slot}")
        # Without a first start there is no publication that would be ours.
        name = state.source.publication if state.source is not None else source.publication_name
        if source.publication.manage and inspect_publication(connection, name) is not None:
            drop_publication(connection, name)
            removed.append(f"publication {name}")
    return removed


def _drop_slot(connection: Any, name: str, source: SourceConfig) -> bool:
    from connectors.postgres.failures import mapped_errors, slot_active
    from connectors.postgres.slot import inspect_slot

    deadline = time.monotonic() + _SLOT_FREE_WITHIN_S
    while True:
        slot = inspect_slot(connection, name)
        if slot is None:
            return False
        if slot.plugin != "pgoutput" or slot.database != source.database:
            raise SourceError(
                "slot_foreign", f"the slot {name} is not of this source, and is left as it is"
            )
        if not slot.active:
            with mapped_errors("drop the replication slot"):
                connection.execute("SELECT pg_drop_replication_slot(%s::name)", (name,))
            return True
        # The sender of a process that was killed ends a moment later.
        if time.monotonic() > deadline:
            raise slot_active(name, slot.active_pid)
        time.sleep(0.1)


def replicas(config: Config, source: SourceConfig, state: ControlState | None) -> list[Path]:
    """Folders of the source's derived tables that are there."""
    from cdc.names import lake_folder

    tables = {*source.table_ids, *(state.tables if state is not None else ())}
    folders = [Path(lake_folder(config.lake.path, source.name, *table)) for table in sorted(tables)]
    # Nothing but a Delta table is ours to remove.
    return [folder for folder in folders if (folder / "_delta_log").is_dir()]
