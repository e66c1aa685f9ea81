"""What the copier and its workers tell each other: JSON lines over pipes. Pure.

To a worker: its setup; then a task, and chunks of it, and so on; in between its share of the
rows per second. From a worker: ``ready``; then for each chunk any number of ``written`` and one
``done``, or ``blocked`` (it was not begun), or ``failed`` and the end.
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
from cdc.load import ChunkPlan, LoadTask, Piece
from cdc.schema import TableSchema


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """All that a worker needs; it holds secrets, so it never goes into argv or a log.

    Args:
        number: Of the worker, from 1.
        project: For the transactional id.
        source: For the transactional id.
        conninfo: libpq keywords of the source.
        epoch: Of the source's history.
        origin: What every envelope says of where it comes from.
        bootstrap_servers: Of the log.
        log_options: librdkafka's security options.
        topic: The first topic that it will most likely write to, if one is known.
    """

    number: int
    project: str
    source: str
    conninfo: Mapping[str, Any] = field(repr=False)
    epoch: int
    origin: Origin
    bootstrap_servers: str
    log_options: Mapping[str, str] = field(repr=False)
    topic: str | None = None

    def to_line(self) -> bytes:
        """One JSON line."""
        raw = {name: getattr(self, name) for name in self.__slots__}
        origin = self.origin
        raw["origin"] = [origin.version, origin.source, origin.database]
        raw["conninfo"] = dict(self.conninfo)
        raw["log_options"] = dict(self.log_options)
        return _line(raw)

    @classmethod
    def from_line(cls, line: bytes) -> WorkerSetup:
        """Read the line back."""
        raw = orjson.loads(line)
        raw["origin"] = Origin(*raw["origin"])
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class CopyChunk:
    """Copy this chunk of the newest task."""

    chunk: int


@dataclass(frozen=True, slots=True)
class SetRate:
    """From now on no more rows than this; may come in the middle of a chunk."""

    rows_per_second: float


Command = LoadTask | CopyChunk | SetRate


def command_line(command: Command) -> bytes:
    """A command as one JSON line; a task without the list of what is left of it."""
    match command:
        case CopyChunk(chunk):
            return _line({"do": "copy", "chunk": chunk})
        case SetRate(rows_per_second):
            return _line({"do": "rate", "rows": rows_per_second})
        case LoadTask():
            schema = command.schema
            return _line(
                {
                    "do": "take",
                    "load": schema.load,
                    "version": schema.version,
                    "schema": schema.to_record(),
                    "filenode": command.filenode,
                    "topic": command.topic,
                    "partitions": command.partitions,
                    "spool_from": command.spool_from,
                    "plan": [
                        [piece.step, piece.count, piece.leaves] for piece in command.plan.pieces
                    ],
                }
            )


def read_command(line: bytes) -> Command:
    """Read a command back."""
    raw = orjson.loads(line)
    match raw["do"]:
        case "copy":
            return CopyChunk(raw["chunk"])
        case "rate":
            return SetRate(raw["rows"])
        case "take":
            return LoadTask(
                TableSchema.from_record(raw["load"], raw["version"], raw["schema"]),
                raw["filenode"],
                raw["topic"],
                raw["partitions"],
                raw["spool_from"],
                ChunkPlan(
                    tuple(Piece(step, count, tuple(leaves)) for step, count, leaves in raw["plan"])
                ),
                (),
            )
    raise ValueError("not a command for a worker")


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker's transactional id is registered: its predecessor is fenced."""

    def to_line(self) -> bytes:
        """One JSON line."""
        return _line({"say": "ready"})


@dataclass(frozen=True, slots=True)
class RowsWritten:
    """Rows of the chunk at hand that are committed in Kafka so far."""

    rows: int

    def to_line(self) -> bytes:
        """One JSON line."""
        return _line({"say": "written", "rows": self.rows})


@dataclass(frozen=True, slots=True)
class Done:
    """All of the chunk is committed in Kafka, and its transaction at the source has ended.

    Args:
        rows: Of the chunk.
        ends: Next offset of every partition that it was written to.
        seconds: That it took.
        snapshot: As of ``ChunkDone``.
    """

    rows: int
    ends: Ends
    seconds: float
    snapshot: str | None = None

    def to_line(self) -> bytes:
        """One JSON line."""
        ends = {
            topic: {str(p): end for p, end in partitions.items()}
            for topic, partitions in self.ends.items()
        }
        return _line(
            {
                "say": "done",
                "rows": self.rows,
                "ends": ends,
                "seconds": self.seconds,
                "snapshot": self.snapshot,
            }
        )


@dataclass(frozen=True, slots=True)
class Blocked:
    """The chunk was not begun: its table is locked. The worker goes on with the next one.

    Args:
        holders: Who locks it, as far as it could be seen.
    """

    holders: tuple[str, ...]

    def to_line(self) -> bytes:
        """One JSON line."""
        return _line({"say": "blocked", "holders": self.holders})


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker gives up."""

    error: CdcError

    def to_line(self) -> bytes:
        """One JSON line."""
        return _line({"say": "failed", "kind": type(self.error).__name__, **self.error.to_json()})


Message = Ready | RowsWritten | Done | Blocked | Failed


def read_message(line: bytes) -> Message:
    """Read a worker's line."""
    raw = orjson.loads(line)
    match raw["say"]:
        case "ready":
            return Ready()
        case "written":
            return RowsWritten(raw["rows"])
        case "done":
            ends = {t: {int(p): e for p, e in ps.items()} for t, ps in raw["ends"].items()}
            return Done(raw["rows"], ends, raw["seconds"], raw["snapshot"])
        case "blocked":
            return Blocked(tuple(raw["holders"]))
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


def _line(raw: Mapping[str, Any]) -> bytes:
    return orjson.dumps(raw) + b"\n"
