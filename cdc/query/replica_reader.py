"""Opens a replica at one version, without a JVM: progress, columns, files.

Everything comes from the table's own log at that version, so files, deletion vectors and the
position that they stand for belong together whatever is written meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

from cdc.errors import LakeError
from cdc.position import Position, frontier

if TYPE_CHECKING:
    from deltalake import DeltaTable

_APP = re.compile(r"cdc/1/([a-z0-9_]+)/([A-Za-z0-9_-]+)/g(\d+)/i(\d+)/e(\d+)")
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
# Commits of others that move no row in or out of the table's content.
_HARMLESS: Final = frozenset(
    {
        "OPTIMIZE",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "UPGRADE PROTOCOL",
        "COMPUTE STATS",
        "CLUSTER BY",
        "FSCK",
    }
)
_SOME_COMMITS: Final = 30
_GLOB: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class App:
    """The table property ``cdc.app``: which build of which log the replica is.

    Args:
        source: The source's name.
        topic_id: Kafka's id of the topic that it was built from.
        generation: Of the replica; a rebuild makes the next.
        incarnation: Goes up with each rollback.
        epoch: Of the source's history.
    """

    source: str
    topic_id: str
    generation: int
    incarnation: int
    epoch: int

    @classmethod
    def parse(cls, text: str) -> App | None:
        """Read the property; None when it is not of this form."""
        match = _APP.fullmatch(text)
        if match is None:
            return None
        return cls(match[1], match[2], int(match[3]), int(match[4]), int(match[5]))

    def __str__(self) -> str:
        return (
            f"cdc/1/{self.source}/{self.topic_id}/g{self.generation}/i{self.incarnation}"
            f"/e{self.epoch}"
        )


@dataclass(frozen=True, slots=True)
class OpenReplica:
    """A replica at one version.

    Args:
        version: Of the Delta table.
        app: Which build it is.
        position: P: its content is the source's at this frontier.
        ends: Per partition, where reading for records from P on begins; None: not known.
        commit_us: Commit time of the newest transaction in it, µs since 1970 UTC, if known.
        columns: Column name to Spark DDL type.
        files: Absolute paths of its data files, in a fixed order.
        plain: Whether the files can be read as they are; else ``scan`` has to.
        table: The handle, for deletion vectors and ``scan``.
    """

    version: int
    app: App
    position: Position
    ends: Mapping[int, int] | None
    commit_us: int | None
    columns: Mapping[str, str]
    files: tuple[str, ...]
    plain: bool
    table: DeltaTable = field(repr=False)


def open_replica(folder: str, name: str) -> OpenReplica | None:
    """Open the newest version.

    Args:
        folder: Of the table.
        name: ``source.schema.table``, for messages.

    Returns:
        None when nothing was applied yet: no table, or one before its first batch.

    Raises:
        LakeError: ``replica_unreadable``, ``replica_foreign`` (a Delta table that is not ours),
            ``replica_changed`` (someone else restored it or wrote to it).
    """
    if not (Path(folder) / "_delta_log").is_dir():
        return None
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(Path(folder).as_uri())
        configuration = table.metadata().configuration
        app = App.parse(configuration.get("cdc.app", ""))
        if app is None:
            raise _foreign(name, folder)
        applied = table.transaction_version(str(app))
        if applied is None:
            return None
        position = frontier(app.epoch, applied)
        hint = _check_history(table, position, name)
        partitioned = bool(table.metadata().partition_columns)
        mapped = configuration.get("delta.columnMapping.mode", "none") != "none"
        files = tuple(local_path(uri, name) for uri in table.file_uris())
        return OpenReplica(
            version=table.version(),
            app=app,
            position=position,
            ends=_ends(hint),
            commit_us=hint.get("commit_us"),
            columns={f.name: _ddl(f.type) for f in table.schema().fields},
            files=files,
            plain=not partitioned
            and not mapped
            and not any(_GLOB.intersection(path) for path in files),
            table=table,
        )
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as problem:
        raise LakeError(
            "replica_unreadable",
            f"the replica in {folder} cannot be read ({type(problem).__name__})",
            table=name,
            remedy=f"cdc rebuild {name} --from-offset 0",
        ) from None


def _foreign(name: str, folder: str) -> LakeError:
    return LakeError(
        "replica_foreign",
        f"the Delta table in {folder} was not made by cdc",
        table=name,
        remedy="move it away, or choose another lake.path",
    )


def _check_history(table: DeltaTable, position: Position, name: str) -> dict[str, Any]:
    """The metadata of the commit that brought the table to ``position``; {} when expired.

    Newest first: until our own commit comes, only commits that change no content may stand.
    Transaction ids survive a RESTORE, so without this a restored table would look as before.
    """
    for limit in (1, _SOME_COMMITS, None):
        history = table.history(limit)
        for commit in history:
            ours = _our_metadata(commit)
            if ours is not None:
                if ours.get("position") == str(position):
                    return ours
                continue
            if commit.get("operation", "") not in _HARMLESS:
                raise LakeError(
                    "replica_changed",
                    f"version {commit.get('version')} of the replica "
                    f"({commit.get('operation')}) was not written by cdc",
                    table=name,
                    position=str(position),
                    remedy=f"cdc rebuild {name} --from-offset 0",
                )
        if limit is not None and len(history) < limit:
            break
    return {}


def _our_metadata(commit: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        metadata = json.loads(commit.get("userMetadata") or "null")
    except ValueError:
        return None
    ours = isinstance(metadata, dict) and metadata.get("v") == 1 and "kind" in metadata
    return metadata if ours else None


def _ends(hint: Mapping[str, Any]) -> dict[int, int] | None:
    ends = hint.get("ends")
    if not isinstance(ends, dict):
        return None
    return {int(partition): int(end) for partition, end in ends.items()}


def local_path(uri: str, name: str) -> str:
    """The path of a file as deltalake names it; ``name`` is the table's, for messages."""
    # deltalake gives paths with %-escapes, with or without file://.
    parts = urlparse(uri)
    if parts.scheme not in ("", "file"):
        raise LakeError(
            "replica_unreadable", "the replica has files outside of the lake", table=name
        )
    return unquote(uri.removeprefix("file://"))


def _ddl(kind: Any) -> str:
    text = getattr(kind, "type", "")
    return _TYPES.get(text, str(text).upper())
