"""Random histories of one made-up table, with what the source held at every moment.

The table has columns id (the key), a, and big, which is sometimes unsent. Records are built as
capture would: an unsent value is either missing or re-read from the source's future.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from typing import Any

from cdc.envelope import LogRecord
from cdc.position import Position, frontier, snapshot_position

Row = dict[str, Any]

PARTITIONS = 3
COLUMNS = ("id", "a", "big")


def key_of(row: Row) -> bytes:
    return b'{"id":%d}' % row["id"]


@dataclass
class History:
    """Records in the log, and the source's rows after each transaction."""

    records: list[LogRecord] = field(default_factory=list)
    #: (commit end as frontier, key to row)
    states: list[tuple[Position, dict[bytes, Row]]] = field(default_factory=list)
    truncates: list[Position] = field(default_factory=list)

    def newest_truncate(self, before: Position) -> Position | None:
        return max((p for p in self.truncates if p < before), default=None)

    def state_at(self, position: Position) -> dict[bytes, Row]:
        return next(rows for at, rows in self.states if at == position)


@dataclass
class _Change:
    op: str
    ordinal: int
    key: bytes
    row: Row | None = None
    old_key: bytes | None = None
    unsent: bool = False


def random_history(seed: int, transactions: int = 12, keys: int = 5) -> History:
    """A history from a seed; the same seed gives the same history."""
    rng = random.Random(seed)
    value = iter(range(1_000_000))
    lsn = 1000
    history = History()
    rows: dict[bytes, Row] = {}
    for id in range(rng.randrange(keys)):
        row = {"id": id, "a": next(value), "big": f"big{next(value)}"}
        rows[key_of(row)] = row
    plan: list[tuple[Position, list[_Change]]] = [
        (snapshot_position(0, lsn), [_Change("r", 0, k, r) for k, r in rows.items()])
    ]
    history.states.append((frontier(0, lsn), dict(rows)))
    for _ in range(transactions):
        changes = _transaction(rng, rows, value, keys)
        plan.append((Position(0, lsn, 0), changes))
        # A commit record may start exactly where the one before it ended.
        start, lsn = lsn, lsn + rng.choice((8, 16))
        history.states.append((frontier(0, lsn), dict(rows)))
        history.truncates += [Position(0, start, c.ordinal) for c in changes if c.op == "t"]
    _write(history, rng, plan)
    return history


def _transaction(rng, rows, value, keys):
    changes = []
    for ordinal in range(1, rng.randrange(2, 7)):
        free = [i for i in range(keys) if b'{"id":%d}' % i not in rows]
        op = rng.choices("iukdt", (4, 6, 3, 2, 0.4))[0]
        if op == "t":
            rows.clear()
            changes.append(_Change("t", ordinal, b""))
        elif op == "i" and free:
            row = {"id": rng.choice(free), "a": next(value), "big": f"big{next(value)}"}
            rows[key_of(row)] = row
            changes.append(_Change("c", ordinal, key_of(row), row))
        elif op in "ukd" and rows:
            key = rng.choice(sorted(rows))
            if op == "d":
                del rows[key]
                changes.append(_Change("d", ordinal, key))
            elif op == "u":
                unsent = rng.random() < 0.6
                row = {**rows[key], "a": next(value)}
                if not unsent:
                    row["big"] = f"big{next(value)}"
                rows[key] = row
                changes.append(_Change("u", ordinal, key, row, unsent=unsent))
            elif free:
                unsent = rng.random() < 0.6
                row = {**rows.pop(key), "id": rng.choice(free), "a": next(value)}
                rows[key_of(row)] = row
                changes.append(_Change("k", ordinal, key_of(row), row, key, unsent))
    return changes


def _write(history, rng, plan):
    """Turn changes into records, with redeliveries and re-reads, partition by partition."""
    ends = [0] * PARTITIONS
    future = history.states[-1][1]

    def put(key, position, op, **fields):
        partition = zlib.crc32(key) % PARTITIONS
        history.records.append(
            LogRecord(partition, ends[partition], key, position, 1, op, **fields)
        )
        ends[partition] += rng.choice((1, 1, 3))

    for at, changes in plan:
        for _ in range(2 if rng.random() < 0.15 else 1):  # a part that was sent again
            for change in changes:
                position = at if change.op == "r" else Position(at.epoch, at.lsn, change.ordinal)
                _put_change(put, position, change, future, rng)


def _put_change(put, position, change, future, rng):
    if change.op == "t":
        return
    if change.op == "d":
        put(change.key, position, "d", before={"id": 0})
        put(change.key, position, "tombstone")
        return
    after = dict(change.row)
    unchanged: tuple[str, ...] = ()
    if change.unsent:
        unchanged = ("big",)
        del after["big"]
        if change.key in future and rng.random() < 0.7:
            after["big"] = future[change.key]["big"]
    if change.op == "k":
        put(change.old_key, position, "d", before={"id": 0}, new_key=change.key)
        put(change.old_key, position, "tombstone")
        put(change.key, position, "c", after=after, unchanged=unchanged, old_key=change.old_key)
        return
    put(change.key, position, change.op, after=after, unchanged=unchanged)
