"""Records of a source's control topic, and the state they fold to. Pure; docs/formats.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import orjson

from cdc.errors import LogError
from cdc.names import TableId
from cdc.position import Position, format_lsn, parse_lsn
from cdc.schema import TableSchema
from cdc.states import ABANDONED, COPYING, INTENDED, REPLAYING

#: Key (JSON array) and value of a control record.
KeyValue = tuple[bytes, bytes]


class _Record:
    """Plain fields to and from JSON; positions and LSNs in their text forms."""

    _positions: ClassVar[tuple[str, ...]] = ()
    _lsns: ClassVar[tuple[str, ...]] = ()
    #: Fields that the key holds.
    _in_key: ClassVar[tuple[str, ...]] = ()

    def value(self) -> bytes:
        raw: dict[str, Any] = {"v": 1, **dataclasses.asdict(self)}  # type: ignore[call-overload]
        for name in self._in_key:
            del raw[name]
        for name in self._positions:
            raw[name] = None if raw[name] is None else str(Position(*raw[name]))
        for name in self._lsns:
            raw[name] = None if raw[name] is None else format_lsn(raw[name])
        return orjson.dumps(raw)

    @classmethod
    def from_value(cls, raw: dict[str, Any]) -> Self:
        fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        known = {name: value for name, value in raw.items() if name in fields}
        # A field that was added later is absent from older records.
        for name in cls._positions:
            known[name] = Position.parse(known[name]) if known.get(name) is not None else None
        for name in cls._lsns:
            known[name] = parse_lsn(known[name]) if known.get(name) is not None else None
        return cls(**known)


@dataclass(frozen=True, slots=True)
class SourceRecord(_Record):
    """What the source is; written at its first start."""

    sysid: str
    timeline: int
    slot: str
    publication: str
    epoch: int
    server_version: int
    database: str

    def to_key_value(self) -> KeyValue:
        """Key and value to produce."""
        return control_key("source"), self.value()


@dataclass(frozen=True, slots=True)
class OffsetRecord(_Record):
    """Where capture stands; start takes the newer of this and the last frontier record."""

    position: Position
    end_lsn: int
    sysid: str
    timeline: int
    slot: str
    full_at: int

    _positions: ClassVar[tuple[str, ...]] = ("position",)
    _lsns: ClassVar[tuple[str, ...]] = ("end_lsn",)

    def to_key_value(self) -> KeyValue:
        """Key and value to produce."""
        return control_key("offset"), self.value()


@dataclass(frozen=True, slots=True)
class TableRecord(_Record):
    """State of a table, and what the start checks compare.

    Args:
        id: The table.
        state: See ``cdc.states``.
        load: The load that readers use.
        topic: Of that load.
        topic_id: Kafka's id of the topic (None until it exists).
        partitions: Of the topic.
        ready_from: First frontier that readers may use; None before Ready.
        last_good: When Errored, the frontier up to which the log is good.
        reason: When Errored, what happened.
        remedy: When Errored, what mends it.
        relid: The table's OID.
        filenode: ``pg_relation_filenode``.
        pub_rel: oid and xmin of the table's row in pg_publication_rel.
        aside: When Errored while the source goes on without it: ``reload`` or ``wait``, see
            ``cdc.states``; None: the source itself is stopped.
        types: What values of its columns look like beyond their own types: labels of enums by
            ``e`` and OID in pg_enum, attributes of composite types by ``c`` and OID in pg_class;
            by ``a`` and attnum, the transaction that altered a column last; ``w``: relnatts.
    """

    id: TableId
    state: str
    load: int
    topic: str
    topic_id: str | None
    partitions: int
    ready_from: Position | None = None
    last_good: Position | None = None
    reason: str | None = None
    remedy: str | None = None
    relid: int | None = None
    filenode: int | None = None
    pub_rel: dict[str, int] | None = None
    aside: str | None = None
    types: dict[str, str] | None = None

    _positions: ClassVar[tuple[str, ...]] = ("ready_from", "last_good")
    _in_key: ClassVar[tuple[str, ...]] = ("id",)

    def to_key_value(self) -> KeyValue:
        """Key and value to produce."""
        return control_key("table", *self.id), self.value()


@dataclass(frozen=True, slots=True)
class LoadRecord(_Record):
    """One snapshot of a table into a topic of its own.

    Args:
        id: The table.
        load: Its number, from 1.
        topic: That it goes to.
        topic_id: Kafka's id of the topic (None until it exists).
        kind: ``chunks``.
        consistent_point: S0: events with a commit record at or above it were spooled; rows of
            the load have the position just below it. None before.
        state: See ``cdc.states``.
        rows: Of the chunks that are done.
        chunks: Number of chunks; 0 until they are planned.
        slot: The replication slot, at the source's first start.
        spool: Topic of the events that wait.
        step: Blocks of a chunk; 0 if ``pieces`` tell them.
        pieces: How a partitioned table is cut, see ``cdc.load.Piece``: relation ids of leaves,
            blocks of a chunk, number of chunks. Empty: the table is one piece.
        done: Chunks that are done: pairs of first and last number.
        estimate: The planner's guess of all rows; None if it has none.
        ready_after: H: the frontier from which on the topic is the table's state at one moment.
        replayed: Position of the newest spooled event in the topic; None: of none.
        spool_offset: Of the next record of the spool to replay.
        relation_offset: Of the newest Relation of the spool below it.
        attempt: How many loads of this table began before and did not end, in a row.
        filenode: ``pg_relation_filenode`` when spooling began: a rewrite ends the load.
        hashed: The topics have hashed names, because Kafka takes others for the same.
        paused: No chunks are copied until somebody resumes it; its events are spooled.
        priority: Loads with a higher one are copied first.
        snapshot: ``pg_current_snapshot()`` of the copy of a table without a key: events of
            transactions that it sees are not replayed; None for other tables.
    """

    id: TableId
    load: int
    topic: str
    topic_id: str | None
    kind: str
    consistent_point: int | None
    state: str
    rows: int = 0
    chunks: int = 0
    slot: str | None = None
    spool: str | None = None
    step: int = 0
    pieces: tuple[tuple[tuple[int, ...], int, int], ...] = ()
    done: tuple[tuple[int, int], ...] = ()
    estimate: int | None = None
    ready_after: int | None = None
    replayed: Position | None = None
    spool_offset: int = 0
    relation_offset: int = 0
    attempt: int = 0
    filenode: int | None = None
    hashed: bool = False
    paused: bool = False
    priority: int = 0
    snapshot: str | None = None

    _positions: ClassVar[tuple[str, ...]] = ("replayed",)
    _lsns: ClassVar[tuple[str, ...]] = ("consistent_point", "ready_after")
    _in_key: ClassVar[tuple[str, ...]] = ("id", "load")

    def to_key_value(self) -> KeyValue:
        """Key and value to produce."""
        return control_key("load", *self.id, self.load), self.value()

    @property
    def unfinished(self) -> bool:
        """Begun, and neither done nor abandoned."""
        return self.state in (INTENDED, COPYING, REPLAYING)


def abandoned(loads: Iterable[LoadRecord]) -> list[KeyValue]:
    """Keys and values that end loads which are not done."""
    return [dataclasses.replace(load, state=ABANDONED).to_key_value() for load in loads]


def schema_key_value(schema: TableSchema) -> KeyValue:
    """Key and value of a schema version."""
    key = control_key("schema", schema.schema, schema.table, schema.load, schema.version)
    return key, orjson.dumps(schema.to_record())


def truncate_key_value(
    table: TableId, load: int, position: Position, *, cascade: bool, restart_identity: bool
) -> KeyValue:
    """Key and value of a truncate: readers ignore the table's records below ``position``."""
    key = control_key("truncate", *table, load, str(position))
    return key, orjson.dumps({"v": 1, "cascade": cascade, "restart_identity": restart_identity})


def control_key(*parts: str | int) -> bytes:
    """The JSON array that is a control record's key."""
    return orjson.dumps(parts)


@dataclass(slots=True)
class ControlState:
    """The control topic, folded; feed every record in order to ``apply``."""

    source: SourceRecord | None = None
    offset: OffsetRecord | None = None
    tables: dict[TableId, TableRecord] = field(default_factory=dict)
    loads: dict[tuple[TableId, int], LoadRecord] = field(default_factory=dict)
    schemas: dict[tuple[TableId, int], dict[int, TableSchema]] = field(default_factory=dict)
    truncates: dict[tuple[TableId, int], list[Position]] = field(default_factory=dict)
    #: Offset after the last record that was applied, as far as the reader told.
    end: int = 0

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take one record in; unknown kinds are ignored, an unknown ``v`` is refused."""
        try:
            kind, *rest = orjson.loads(key)
            if value is None:
                self._forget(kind, rest)
                return
            raw = orjson.loads(value)
            if raw.get("v") != 1:
                raise LogError("unknown_version", f"{kind} record of version {raw.get('v')!r}")
            self._take(kind, rest, raw)
        except (KeyError, ValueError, TypeError) as problem:
            raise LogError(
                "bad_record", f"a control record is not one of ours ({type(problem).__name__})"
            ) from None

    def _take(self, kind: str, rest: list[Any], raw: dict[str, Any]) -> None:
        if kind == "source":
            self.source = SourceRecord.from_value(raw)
        elif kind == "offset":
            self.offset = OffsetRecord.from_value(raw)
        elif kind == "table":
            table = TableId(rest[0], rest[1])
            self.tables[table] = TableRecord.from_value({**raw, "id": table})
        elif kind == "load":
            table = TableId(rest[0], rest[1])
            done = tuple((first, last) for first, last in raw.get("done", ()))
            pieces = tuple(
                (tuple(leaves), step, count) for leaves, step, count in raw.get("pieces", ())
            )
            key = {"id": table, "load": rest[2]}
            load = LoadRecord.from_value({**raw, **key, "done": done, "pieces": pieces})
            self.loads[table, rest[2]] = load
        elif kind == "schema":
            schema = TableSchema.from_record(rest[2], rest[3], raw)
            self.schemas.setdefault((TableId(rest[0], rest[1]), rest[2]), {})[rest[3]] = schema
        elif kind == "truncate":
            position = Position.parse(rest[3])
            positions = self.truncates.setdefault((TableId(rest[0], rest[1]), rest[2]), [])
            if position not in positions:
                positions.append(position)

    def _forget(self, kind: str, rest: list[Any]) -> None:
        if kind == "table":
            self.tables.pop(TableId(rest[0], rest[1]), None)
        elif kind == "load":
            self.loads.pop((TableId(rest[0], rest[1]), rest[2]), None)
        elif kind == "schema":
            self.schemas.get((TableId(rest[0], rest[1]), rest[2]), {}).pop(rest[3], None)
        elif kind == "truncate":
            known = self.truncates.get((TableId(rest[0], rest[1]), rest[2]), [])
            position = Position.parse(rest[3])
            if position in known:
                known.remove(position)

    # --- questions ---

    def newest_schema(self, table: TableId, load: int) -> TableSchema | None:
        """The schema of the highest version of a load."""
        versions = self.schemas.get((table, load))
        return versions[max(versions)] if versions else None

    def schema_at(self, table: TableId, load: int, frontier: Position) -> TableSchema | None:
        """The newest schema valid from before ``frontier`` (version 1 at the least)."""
        versions = self.schemas.get((table, load))
        if not versions:
            return None
        valid = [s for s in versions.values() if s.valid_from < frontier]
        return max(valid or [versions[min(versions)]], key=lambda s: s.version)

    def newest_truncate(self, table: TableId, load: int, frontier: Position) -> Position | None:
        """The newest truncate below ``frontier``: records of the table below it are void."""
        below = [p for p in self.truncates.get((table, load), ()) if p < frontier]
        return max(below, default=None)

    def unfinished_loads(self) -> list[LoadRecord]:
        """Loads that were begun and neither done nor abandoned."""
        return [r for r in self.loads.values() if r.unfinished]
