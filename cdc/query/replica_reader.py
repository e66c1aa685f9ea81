"""A replica at one version as DuckDB reads it: files, column types, deletion vectors.

Everything comes from the table's own log at that version, so files, deletion vectors and the
position that they stand for belong together whatever is written meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from cdc.errors import LakeError
from cdc.position import Position

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from cdc.lake import AppId, CommitNote

_TYPES: Final = {
    "boolean": "BOOLEAN",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
}
# DuckDB takes these in a file's name for patterns.
_GLOB: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class OpenReplica:
    """A replica at one version.

    Args:
        version: Of the Delta table.
        app: Which build of which log it is.
        position: P: its content is the source's at this frontier.
        ends: Per partition, where reading for records from P on begins; None: not known.
        written_us: When the log was complete up to P, µs since 1970 UTC, if known.
        columns: Column name to Spark DDL type, hidden columns included.
        files: Absolute paths of its data files, in a fixed order.
        plain: Whether the files can be read as they are; else deltalake has to.
        table: The handle, for deletion vectors and deltalake's own reader.
    """

    version: int
    app: AppId
    position: Position
    ends: Mapping[int, int] | None
    written_us: int | None
    columns: Mapping[str, str]
    files: tuple[str, ...]
    plain: bool
    table: DeltaTable = field(repr=False)


def open_for_query(folder: str, name: str) -> OpenReplica | None:
    """Open the newest version.

    Args:
        folder: Of the table.
        name: ``source.schema.table``, for messages.

    Returns:
        None when nothing was applied yet: no table, or one before its first batch.

    Raises:
        LakeError: ``replica_unreadable``, and as ``cdc.lake.open_replica``.
    """
    from cdc.lake import open_replica

    replica = open_replica(folder, table=name)
    if replica is None or replica.position is None:
        return None
    table = replica.table
    metadata = table.metadata()
    mapped = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
    files = tuple(local_path(uri, name) for uri in table.file_uris())
    return OpenReplica(
        version=replica.version,
        app=replica.app,
        position=replica.position,
        ends=replica.ends,
        written_us=_written_us(replica.note),
        columns={f.name: _ddl(f.type) for f in table.schema().fields},
        files=files,
        plain=not metadata.partition_columns
        and not mapped
        and not any(_GLOB.intersection(path) for path in files),
        table=table,
    )


def _written_us(note: CommitNote | None) -> int | None:
    if note is None:
        return None
    # On a quiet source the newest commit may be far older than the frontier.
    return note.commit_us if note.log_ms is None else note.log_ms * 1000


def local_path(uri: str, name: str) -> str:
    """The path of a file as deltalake names it; ``name`` is the table's, for messages."""
    # It gives them with %-escapes, with or without file://.
    if urlsplit(uri).scheme not in ("", "file"):
        raise LakeError(
            "replica_unreadable", "the replica has files outside of the lake", table=name
        )
    return unquote(uri.removeprefix("file://"))


def _ddl(kind: Any) -> str:
    text = str(kind.type)
    if text == "array":
        return f"ARRAY<{_ddl(kind.element_type)}>"
    return _TYPES.get(text, text.upper())
