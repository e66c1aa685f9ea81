"""Records of the frontier topic: how far the log is complete. Pure; pinned in docs/formats.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from cdc.errors import LogError
from cdc.position import Position, format_lsn, parse_lsn

#: Topic name to partition to the next offset.
Ends = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last source transaction that a frontier record covers.

    Args:
        lsn: Start of its commit record.
        xid: Its transaction id.
        commit_us: Its commit time, µs since 1970 UTC.
    """

    lsn: int
    xid: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class FrontierRecord:
    """Written with every Kafka transaction that completes source transactions.

    Args:
        position: Exclusive: all published records below it are in the log.
        end_lsn: The capture offset, end of the last commit or a keepalive's WAL end.
        sysid: System identifier of the source.
        timeline: Of the source.
        slot: The replication slot.
        last: The last transaction, or None for a keepalive.
        max_commit_us: Highest commit time so far, µs since 1970 UTC.
        control_end: Read control up to this offset before any table range.
        full: Whether ``ends`` holds all partitions.
        full_at: Offset of the newest full record; None in a full record: itself.
        ends: Next offsets of the touched partitions, of all when full.
    """

    position: Position
    end_lsn: int
    sysid: str
    timeline: int
    slot: str
    last: LastTransaction | None
    max_commit_us: int
    control_end: int
    full: bool
    full_at: int | None
    ends: Ends = field(default_factory=dict)

    def to_value(self) -> bytes:
        """The record's value."""
        last = self.last
        return orjson.dumps(
            {
                "v": 1,
                "position": str(self.position),
                "end_lsn": format_lsn(self.end_lsn),
                "sysid": self.sysid,
                "timeline": self.timeline,
                "slot": self.slot,
                "last": None
                if last is None
                else {"lsn": format_lsn(last.lsn), "xid": last.xid, "commit_us": last.commit_us},
                "max_commit_us": self.max_commit_us,
                "control_end": self.control_end,
                "full": self.full,
                "full_at": self.full_at,
                "ends": {
                    topic: {str(p): end for p, end in parts.items()}
                    for topic, parts in self.ends.items()
                },
            }
        )

    @classmethod
    def from_value(cls, value: bytes) -> FrontierRecord:
        """Read a value; raises LogError ``bad_record`` or ``unknown_version``."""
        try:
            raw: dict[str, Any] = orjson.loads(value)
            if raw["v"] != 1:
                raise LogError("unknown_version", f"frontier record of version {raw['v']!r}")
            last = raw["last"]
            return cls(
                position=Position.parse(raw["position"]),
                end_lsn=parse_lsn(raw["end_lsn"]),
                sysid=raw["sysid"],
                timeline=raw["timeline"],
                slot=raw["slot"],
                last=None
                if last is None
                else LastTransaction(parse_lsn(last["lsn"]), last["xid"], last["commit_us"]),
                max_commit_us=raw["max_commit_us"],
                control_end=raw["control_end"],
                full=raw["full"],
                full_at=raw["full_at"],
                ends={
                    topic: {int(p): end for p, end in parts.items()}
                    for topic, parts in raw["ends"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise LogError(
                "bad_record", f"a frontier record is not one of ours ({type(problem).__name__})"
            ) from None


@dataclass(frozen=True, slots=True)
class FrontierView:
    """The newest frontier with the ends of all partitions.

    Args:
        record: The newest record.
        ends: Next offset of every partition of every topic, as of the record.
        full_at: Offset of the full record that ``ends`` was built up from.
        offset: Offset of ``record`` in the frontier topic.
    """

    record: FrontierRecord
    ends: Ends
    full_at: int
    offset: int

    @property
    def position(self) -> Position:
        """The exclusive position F."""
        return self.record.position


def merge_ends(ends: Ends, newer: Ends) -> None:
    """Lay the ends of a newer record over older ones, in place."""
    for topic, parts in newer.items():
        ends.setdefault(topic, {}).update(parts)


def view_of(records: Iterable[tuple[int, FrontierRecord]]) -> FrontierView:
    """Build the view from (offset, record) pairs, from a full record to the newest.

    Raises:
        LogError: ``frontier_incomplete`` when the first record is not a full one.
    """
    view: FrontierView | None = None
    ends: Ends = {}
    full_at = -1
    for offset, record in records:
        if record.full:
            ends = {topic: dict(parts) for topic, parts in record.ends.items()}
            full_at = offset
        elif full_at < 0:
            raise LogError(
                "frontier_incomplete",
                f"the frontier topic has no full record before offset {offset}",
                remedy="its retention must exceed log.history; start capture to write a new one",
            )
        else:
            merge_ends(ends, record.ends)
        view = FrontierView(record, ends, full_at, offset)
    if view is None:
        raise LogError("frontier_incomplete", "the frontier topic has no record")
    return view
