"""Replicas in the lake as they are read without a JVM: version, progress, marks of a person.

Progress is Delta's own SetTransaction of the application that the table property ``cdc.app``
names; a commit's userMetadata repeats it for people and as a hint, never as the only copy.
Imports deltalake only, for ``cdc query`` starts here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc.errors import LakeError, LogError
from cdc.position import Position, frontier

APP_PROPERTY: Final = "cdc.app"
#: Hidden columns of a replica: the row's commit LSN, and its record key (see formats.md).
LSN_COLUMN: Final = "_cdc_lsn"
KEY_COLUMN: Final = "_cdc_key"

#: In a commit's info: the version that it was planned from, where Spark did not write it. Spark
#: records it as ``readVersion``.
READ_VERSION: Final = "cdc.readVersion"

#: Operations of Delta that change what a table holds; ours always carry a note.
_CHANGES_ROWS: Final = frozenset(
    {
        "RESTORE",
        "WRITE",
        "DELETE",
        "UPDATE",
        "MERGE",
        "TRUNCATE",
        "STREAMING UPDATE",
        "CLONE",
        "COPY INTO",
        "REPLACE TABLE",
        "CREATE OR REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE AS SELECT",
    }
)

_APP = re.compile(r"cdc/1/([^/]+)/([^/]+)/g(\d+)/i(\d+)/e(\d+)")


@dataclass(frozen=True, slots=True)
class AppId:
    """The application id under which a replica's progress is recorded.

    Args:
        source: The source's name.
        topic_id: Kafka's id of the topic that the replica is folded from.
        generation: Counted up by each rebuild.
        incarnation: Counted up by each restore.
        epoch: Of the source's history.
    """

    source: str
    topic_id: str
    generation: int = 1
    incarnation: int = 1
    epoch: int = 0

    def __str__(self) -> str:
        return (
            f"cdc/1/{self.source}/{self.topic_id}"
            f"/g{self.generation}/i{self.incarnation}/e{self.epoch}"
        )

    @classmethod
    def parse(cls, text: str) -> AppId:
        """Read the property; raises LakeError ``bad_app``."""
        match = _APP.fullmatch(text)
        if match is None:
            raise LakeError("bad_app", f"not an application id of ours: {text[:80]!r}")
        return cls(match[1], match[2], int(match[3]), int(match[4]), int(match[5]))


def app_id(source: str, topic_id: str, generation: int, incarnation: int, epoch: int) -> str:
    """The text of ``cdc.app``."""
    return str(AppId(source, topic_id, generation, incarnation, epoch))


@dataclass(frozen=True, slots=True)
class CommitNote:
    """The userMetadata of a commit of ours: a hint.

    Args:
        position: What the table stands for after the commit.
        commit_us: Highest commit time of the source below the position, µs since 1970 UTC.
        ends: Partition to next offset of the table's topic, as of the position.
        kind: ``apply``, ``rebuild``, ``restore`` or ``upkeep``.
        log_ms: When the broker took in the frontier record of the position, ms since 1970 UTC.
        out_of_range: Column to number of values that its Delta type could not hold and that were
            replaced by its policy, since the replica was built.
    """

    position: Position
    commit_us: int
    ends: dict[int, int]
    kind: str
    log_ms: int | None = None
    out_of_range: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """The userMetadata."""
        note: dict[str, Any] = {
            "v": 1,
            "position": str(self.position),
            "commit_us": self.commit_us,
            "ends": {str(p): end for p, end in sorted(self.ends.items())},
            "kind": self.kind,
            "log_ms": self.log_ms,
        }
        if self.out_of_range:
            note["out_of_range"] = dict(self.out_of_range)
        return orjson.dumps(note).decode()

    @classmethod
    def from_json(cls, text: str | None) -> CommitNote | None:
        """Read userMetadata; None when it is not ours."""
        try:
            raw = orjson.loads(text or "")
            if raw["v"] != 1:
                return None
            return cls(
                Position.parse(raw["position"]),
                int(raw["commit_us"]),
                {int(p): int(end) for p, end in raw["ends"].items()},
                str(raw["kind"]),
                raw.get("log_ms"),
                {str(name): int(count) for name, count in raw.get("out_of_range", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, LogError):
            return None


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica at one version.

    Args:
        path: Its folder.
        version: Delta's version.
        app: Of the property ``cdc.app`` at this version.
        position: What it stands for; None before its first record (it is empty then).
        note: Of the commit that brought it to ``position``, if that is still in the log.
        columns: Names of all columns, hidden ones included, in the table's order.
        table: The open table, for its files and deletion vectors.
    """

    path: str
    version: int
    app: AppId
    position: Position | None
    note: CommitNote | None
    columns: tuple[str, ...]
    table: DeltaTable

    @property
    def ends(self) -> dict[int, int] | None:
        """Where in the topic the position lies: the start of the next range, as a hint."""
        return None if self.note is None else self.note.ends

    @property
    def out_of_range(self) -> Mapping[str, int]:
        """As of ``CommitNote``."""
        return {} if self.note is None else self.note.out_of_range


def open_replica(
    path: str | Path,
    *,
    table: str | None = None,
    version: int | None = None,
    check_by_hand: bool = True,
) -> Replica | None:
    """Open the replica in a folder at its newest version.

    Args:
        path: The replica's folder.
        table: ``source.schema.table``, for messages.
        version: Another version than the newest.
        check_by_hand: Refuse a table that somebody else has restored or written.

    Returns:
        The replica; None when there is no Delta table in the folder.

    Raises:
        LakeError: ``not_a_replica`` (a Delta table that is not ours), ``bad_app``,
            ``restored_by_hand``, ``changed_by_hand``, ``lake_unreadable``.
    """
    if "%" in str(path):
        raise LakeError(
            "lake_unreadable",
            f"deltalake cannot open a folder with a % in its path: {path}",
            table=table,
            remedy="choose another lake.path",
        )
    if not (Path(path) / "_delta_log").is_dir():
        return None
    try:
        opened = DeltaTable(str(path), version=version)
        properties = opened.metadata().configuration
        text = properties.get(APP_PROPERTY)
        if text is None:
            raise LakeError(
                "not_a_replica",
                f"the Delta table in {path} was not made by cdc (no property {APP_PROPERTY})",
                table=table,
                remedy=f"move {path} away",
            )
        app = AppId.parse(text)
        recorded = opened.transaction_version(text)
        position = None if recorded is None else frontier(app.epoch, recorded)
        log = Path(path) / "_delta_log"
        note = _note_of(log, opened.version(), position, table, check_by_hand)
        columns = tuple(field.name for field in opened.schema().fields)
        return Replica(str(path), opened.version(), app, position, note, columns, opened)
    except TableNotFoundError:
        return None
    except DeltaError as problem:
        raise LakeError(
            "lake_unreadable",
            f"the Delta table in {path} cannot be opened ({type(problem).__name__})",
            table=table,
            remedy=f"move {path} away, then cdc rebuild {table or 'TABLE'} --from-offset 0",
        ) from None


def _note_of(
    folder: Path, version: int, position: Position | None, table: str | None, check_by_hand: bool
) -> CommitNote | None:
    """The note of our newest commit; what others wrote since it was planned is an error.

    The commits are read as files: deltalake's history counts from the log's newest commit,
    which may be newer than the version that is open.
    """
    note: CommitNote | None = None
    base = -1
    while version > base:
        info = _commit_info(folder, version)
        if info is None:
            break
        found = CommitNote.from_json(info.get("userMetadata"))
        if note is None and found is not None and found.kind != "upkeep":
            note, base = found, int(info.get("readVersion", info.get(READ_VERSION, -1)))
        elif check_by_hand and info.get("operation") in _CHANGES_ROWS:
            raise _by_hand(info["operation"], table, position)
        version -= 1
    return note if note is not None and note.position == position else None


def _commit_info(folder: Path, version: int) -> dict[str, Any] | None:
    """A commit's ``commitInfo``; None when its file is no longer kept."""
    try:
        with (folder / f"{version:020}.json").open("rb") as lines:
            for line in lines:
                if b'"commitInfo"' in line:
                    info = orjson.loads(line).get("commitInfo")
                    if isinstance(info, dict):
                        return info
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise LakeError("lake_unreadable", f"commit {version} in {folder} cannot be read") from None
    return {}


def _by_hand(operation: str, table: str | None, position: Position | None) -> LakeError:
    restored = operation == "RESTORE"
    done = "restored to an older version" if restored else f"written ({operation})"
    return LakeError(
        "restored_by_hand" if restored else "changed_by_hand",
        f"the Delta table was {done} by somebody else: its recorded position no longer says "
        "what it holds",
        table=table,
        position=None if position is None else str(position),
        remedy=f"cdc rebuild {table or 'TABLE'} --from-offset 0",
    )
