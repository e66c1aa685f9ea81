"""What a load and its workers tell each other: JSON lines over pipes. Pure.

To a worker: its setup, then a range at a time; the end of the pipe ends it. From a worker:
``ready``, then for each range any number of ``written`` and one ``done``, or ``failed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from cdc import errors
from cdc.envelope import Origin
from cdc.errors import CdcError
from cdc.frontier import Ends
from cdc.load import LoadTask
from cdc.schema import TableSchema
from snapshots.plan import BlockRange


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """All that a worker needs; it holds secrets, so it never goes into argv or a log.

    Args:
        number: Of the worker, from 1.
        project: For the transactional id.
        source: For the transactional id.
        conninfo: libpq keywords of the source.
        snapshot: Name of the exported snapshot.
        consistent_point: Of the snapshot, as an LSN.
        epoch: Of the source's history.
        taken_us: When the load began, µs since 1970 UTC.
        origin: What every envelope says of where it comes from.
        bootstrap_servers: Of the log.
        log_options: librdkafka's security options.
        max_message_bytes: The smallest limit of the topics.
        tasks: The tables; ranges name them by index.
    """

    number: int
    project: str
    source: str
    conninfo: Mapping[str, Any] = field(repr=False)
    snapshot: str
    consistent_point: int
    epoch: int
    taken_us: int
    origin: Origin
    bootstrap_servers: str
    log_options: Mapping[str, str] = field(repr=False)
    max_message_bytes: int
    tasks: tuple[LoadTask, ...]

    def to_line(self) -> bytes:
        """One JSON line."""
        raw = {name: getattr(self, name) for name in self.__slots__}
        origin = self.origin
        raw["origin"] = [origin.version, origin.source, origin.database]
        raw["conninfo"] = dict(self.conninfo)
        raw["log_options"] = dict(self.log_options)
        raw["tasks"] = [
            [s.load, s.version, s.to_record(), task.filenode, task.topic, task.partitions]
            for task in self.tasks
            for s in [task.schema]
        ]
        return orjson.dumps(raw) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> WorkerSetup:
        """Read the line back."""
        raw = orjson.loads(line)
        raw["origin"] = Origin(*raw["origin"])
        raw["tasks"] = tuple(
            LoadTask(TableSchema.from_record(load, version, record), filenode, topic, partitions)
            for load, version, record, filenode, topic, partitions in raw["tasks"]
        )
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker sees the snapshot and holds its locks."""

    def to_line(self) -> bytes:
        """One JSON line."""
        return orjson.dumps({"say": "ready"}) + b"\n"


@dataclass(frozen=True, slots=True)
class Written:
    """Rows of the range at hand that are committed in Kafka so far."""

    rows: int

    def to_line(self) -> bytes:
        """One JSON line."""
        return orjson.dumps({"say": "written", "rows": self.rows}) + b"\n"


@dataclass(frozen=True, slots=True)
class Done:
    """All of the range is committed in Kafka.

    Args:
        rows: Of the range.
        ends: Next offset of every partition that it was written to.
    """

    rows: int
    ends: Ends

    def to_line(self) -> bytes:
        """One JSON line."""
        ends = {
            topic: {str(p): end for p, end in partitions.items()}
            for topic, partitions in self.ends.items()
        }
        return orjson.dumps({"say": "done", "rows": self.rows, "ends": ends}) + b"\n"


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker gives up."""

    error: CdcError

    def to_line(self) -> bytes:
        """One JSON line."""
        raw = {"say": "failed", "kind": type(self.error).__name__, **self.error.to_json()}
        return orjson.dumps(raw) + b"\n"


Message = Ready | Written | Done | Failed


def read_message(line: bytes) -> Message:
    """Read a worker's line."""
    raw = orjson.loads(line)
    match raw["say"]:
        case "ready":
            return Ready()
        case "written":
            return Written(raw["rows"])
        case "done":
            ends = raw["ends"].items()
            return Done(raw["rows"], {t: {int(p): e for p, e in ps.items()} for t, ps in ends})
        case "failed":
            kind: type[CdcError] = getattr(errors, raw["kind"])
            error = kind(
                raw["code"],
                raw["message"],
                table=raw["table"],
                position=raw["position"],
                remedy=raw["remedy"],
            )
            return Failed(error)
    raise ValueError("not a message of a worker")


def range_line(blocks: BlockRange) -> bytes:
    """A range as one JSON line."""
    return orjson.dumps([blocks.table, blocks.first, blocks.end]) + b"\n"


def read_range(line: bytes) -> BlockRange:
    """Read a range back."""
    return BlockRange(*orjson.loads(line))
