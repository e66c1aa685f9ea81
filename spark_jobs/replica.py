"""Creates replicas and adds their columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from pyspark.sql import SparkSession

from cdc import codecs
from cdc.errors import LakeError
from cdc.lake import KEY_COLUMN, Replica, open_replica
from cdc.schema import TableSchema
from spark_jobs.failures import spark_failures
from spark_jobs.first_commit import write_first_commit
from spark_jobs.layout import MAPPING_PROPERTY, Layout, delta_name, quote
from spark_jobs.session import planned_for

log = structlog.get_logger(__name__)


def sql_text(text: str) -> str:
    """A string literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def create_replica(session: SparkSession, path: str, layout: Layout, app: str) -> Replica:
    """Create an empty Delta table; a second call on the same folder fails.

    Args:
        session: A worker session.
        path: The replica's folder.
        layout: Its columns.
        app: Text of ``cdc.app``.

    Raises:
        LakeError: ``unsupported_columns``, ``table_exists``, ``spark_failed``.
        EnvironmentProblem: ``lake_not_writable``.
    """
    layout.check()
    if MAPPING_PROPERTY in layout.properties(app):
        # Delta numbers and names such columns.
        create_by_spark(session, path, layout, app)
    else:
        write_first_commit(path, layout, app)
    log.info("replica_created", table=layout.table, columns=len(layout.columns))
    replica = open_replica(path, table=layout.table)
    if replica is None:
        raise LakeError("lake_unreadable", "the new Delta table is not there", table=layout.table)
    return replica


def create_by_spark(session: SparkSession, path: str, layout: Layout, app: str) -> None:
    """Have Spark create an empty Delta table.

    Raises:
        LakeError: ``spark_failed``.
    """
    columns = ", ".join(
        f"{quote(name)} {ddl}{' NOT NULL' if name == layout.key_column else ''}"
        for name, ddl in layout.table_columns
    )
    properties = ", ".join(
        f"{sql_text(name)}={sql_text(value)}" for name, value in layout.properties(app).items()
    )
    with spark_failures(layout, "creating its Delta table"), planned_for(session, 0):
        session.sql(
            f"CREATE TABLE delta.{quote(path)} ({columns}) USING delta TBLPROPERTIES ({properties})"
        )


def add_columns(session: SparkSession, replica: Replica, layout: Layout) -> Replica:
    """Give the replica the columns that the schema has and it has not.

    Returns:
        The replica, opened again if something changed.

    Raises:
        LakeError: ``schema_differs`` when a column has another type than the schema says.
    """
    held = {f.name: _name_of(f.type) for f in replica.table.schema().fields}
    expected = {name: delta_name(ddl) for name, ddl in layout.table_columns}
    for name, kind in expected.items():
        if name in held and held[name] != kind:
            raise _differs(layout, f"column {name} is {held[name]}, and the log says {kind}")
    if (KEY_COLUMN in held) != (KEY_COLUMN in expected):
        raise _differs(layout, "its key has changed")
    missing = [(name, ddl) for name, ddl in layout.table_columns if name not in held]
    if not missing:
        return replica
    layout.check()
    table = f"delta.{quote(replica.path)}"
    features = []
    if any("TIMESTAMP_NTZ" in ddl for _, ddl in missing):
        features.append("'delta.feature.timestampNtz'='supported'")
    if MAPPING_PROPERTY in layout.properties("") and not _is_mapped(replica):
        features.append(f"'{MAPPING_PROPERTY}'='name'")
    columns = ", ".join(f"{quote(name)} {ddl}" for name, ddl in missing)
    with spark_failures(layout, "adding columns"), planned_for(session, 0):
        if features:
            session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({', '.join(features)})")
        session.sql(f"ALTER TABLE {table} ADD COLUMNS ({columns})")
    log.info("columns_added", table=layout.table, columns=[name for name, _ in missing])
    opened = open_replica(replica.path, table=layout.table)
    if opened is None:
        raise LakeError("lake_unreadable", "the Delta table is gone", table=layout.table)
    return opened


def check_versions(layout: Layout, versions: Mapping[int, TableSchema], used: set[int]) -> None:
    """Check that records of these schema versions can be read with the newest schema.

    Args:
        layout: With the schema as of the frontier.
        versions: Every schema version of the load, from control.
        used: Versions that records name.

    Raises:
        LakeError: ``schema_unknown`` (not in control), ``schema_change_unsupported`` (a column
            was renamed, dropped or has another type).
    """
    newest = {c.id: (c.name, codecs.delta_type(c)) for c in layout.schema.columns}
    gone = {c.id for c in layout.schema.dropped}
    for version in sorted(used):
        schema = versions.get(version)
        if schema is None:
            raise LakeError(
                "schema_unknown",
                f"the log has records of schema version {version}, and no such schema",
                table=layout.table,
            )
        for column in schema.columns:
            now = newest.get(column.id)
            if column.id not in gone and now != (column.name, codecs.delta_type(column)):
                raise LakeError(
                    "schema_change_unsupported",
                    f"column {column.name} of schema version {version} was renamed, dropped or "
                    "has another type by now",
                    table=layout.table,
                    remedy="start a new load of the table",
                )


def _name_of(kind: Any) -> str:
    """Delta's name of a type that deltalake gives, as ``delta_name`` writes it."""
    if kind.type == "array":
        return f"array<{_name_of(kind.element_type)}>"
    return str(kind.type)


def _is_mapped(replica: Replica) -> bool:
    return MAPPING_PROPERTY in replica.table.metadata().configuration


def _differs(layout: Layout, what: str) -> LakeError:
    return LakeError(
        "schema_differs",
        f"the Delta table is not as the log says: {what}",
        table=layout.table,
        remedy=f"cdc rebuild {layout.table} --from-offset 0",
    )
