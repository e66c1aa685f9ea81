"""Tables for which cdc.yaml gives another key than their topic has: they are loaded anew. Pure.

A topic holds records of one key. So a table that is served stays as it is until a load with the
other key is done, and a load that is under way begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdc.control import ControlState, LoadRecord
from cdc.names import TableId
from cdc.schema import TableSchema
from cdc.states import INTENDED, READY, REMOVED
from connectors.postgres.catalog import TableDefinition
from connectors.postgres.table_checks import Finding, key_problems


def with_chosen_keys(
    keys: Mapping[TableId, tuple[str, ...]], control: ControlState
) -> list[TableId]:
    """Tables whose key may have changed: cdc.yaml gives one, or gave the one that they have."""
    return [
        id
        for id, record in control.tables.items()
        if record.state != REMOVED
        and (id in keys or ((schema := _schema(control, id)) is not None and schema.chosen))
    ]


def key_changes(
    control: ControlState, definitions: Iterable[TableDefinition]
) -> tuple[list[TableId], list[Finding]]:
    """Compare the keys that tables have with those that they are to have.

    Args:
        control: The source's control topic.
        definitions: As the tables are now, with the keys that cdc.yaml gives.

    Returns:
        Tables that are served and have to be loaded anew; and what is wrong with keys.
    """
    again: list[TableId] = []
    findings: list[Finding] = []
    for definition in definitions:
        schema = _schema(control, definition.id)
        # What is wrong with a key that is as before came with a change of the source, which
        # keeps back only that table.
        if schema is None or schema.key == definition.wanted_key:
            continue
        wrong = [] if definition.wanted_key is None else list(key_problems(definition))
        findings += wrong
        key = definition.key
        # Another replica identity is found, and followed, by itself.
        if wrong or key is None or {schema.identity, definition.identity} != {"f"}:
            continue
        if schema.key != key.columns and not _under_way(control, definition.id):
            again.append(definition.id)
    return again, findings


def has_other_key(schema: TableSchema, wanted: tuple[str, ...] | None) -> bool:
    """Whether a load that is under way has another key than its table is to have.

    Args:
        schema: Of the load.
        wanted: The key that cdc.yaml gives.
    """
    if wanted is None:
        return schema.chosen
    return schema.identity == "f" and schema.key != wanted


def _schema(control: ControlState, id: TableId) -> TableSchema | None:
    """Of the load that is under way, else of the one that is served; None: the next will do."""
    under_way, record = _under_way(control, id), control.tables[id]
    if under_way:
        newest = max(under_way, key=lambda load: load.load)
        return None if newest.state == INTENDED else control.newest_schema(id, newest.load)
    return control.newest_schema(id, record.load) if record.state == READY else None


def _under_way(control: ControlState, id: TableId) -> list[LoadRecord]:
    return [load for load in control.unfinished_loads() if load.id == id]
