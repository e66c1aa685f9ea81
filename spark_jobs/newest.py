"""The newest record of each key of a range, read and typed in the driver, chunk by chunk.

Most keys are decided by their newest record alone, so older ones are never parsed. Keys whose
newest record lacks columns are only named here: ``cdc.fold`` folds their history.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from cdc.envelope import OLD_KEY_HEADER, POSITION_HEADER, SCHEMA_HEADER
from cdc.log.ranges import RawRecord
from spark_jobs.arrow_values import ArrowValues, Newest, bad_record
from spark_jobs.fold_small import OutOfRange
from spark_jobs.layout import GONE_COLUMN, Layout
from spark_jobs.records import Bounds

#: In every envelope with unsent columns: quotes within values are escaped. A column of this
#: name only costs a second look.
_UNSENT_MARK: Final = b'"unchanged"'
_POSITION: Final = re.compile(rb"[0-9A-F]{4}-[0-9A-F]{16}-[0-9A-F]{8}")
_CHUNK_RECORDS: Final = 50_000
_CHUNK_BYTES: Final = 16 * 2**20
#: Of the Python objects that stand for a key, and the key itself.
_KEY_BYTES: Final = 320
#: Ranks of records that share a position, as ``cdc.fold`` orders them.
_TOMBSTONE, _DELETE, _CREATE = 0, 1, 2
_UNKNOWN: Final = -1
#: Instead of a row's number.
_PENDING, _LACKS = -1, -2


class TooLarge(Exception):
    """The range does not fit into the memory that the driver may take."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a range makes of its keys.

    Args:
        tables: Of the keys whose newest record is whole, in the replica's columns and
            ``_cdc_gone``.
        lacking: Keys whose newest record lacks columns.
        needed: Those and every key that their rows had before.
        records: Number of records read.
        out_of_range: Column to number of values in ``tables`` that its Delta type cannot hold.
    """

    tables: list[Any]
    lacking: frozenset[bytes]
    needed: frozenset[bytes]
    records: int
    out_of_range: Counter[str]


#: Position, rank and row of a key; version, value, partition and offset until it is parsed.
#: Plain tuples, as Python's garbage collector looks at millions of others again and again.
_Parsed = tuple[bytes, int, int]
_Pending = tuple[bytes, int, int, bytes, bytes | None, int, int]
_Entry = _Parsed | _Pending


class NewestRecords:
    """Takes the records of a range, partitions in any order.

    Args:
        layout: The replica's columns.
        topic: For messages.
        bounds: The range.
        most_bytes: Memory to take, about.
        check: Called with each schema version, before a record of it is typed.
    """

    def __init__(
        self,
        layout: Layout,
        topic: str,
        bounds: Bounds,
        most_bytes: int,
        check: Callable[[int], None] = lambda version: None,
    ) -> None:
        self._values = ArrowValues(layout, topic)
        self._check_version = check
        self._topic = topic
        self._most_bytes = most_bytes
        self._start = b"" if bounds.start is None else str(bounds.start).encode()
        self._truncate = b"" if bounds.truncate is None else str(bounds.truncate).encode()
        self._end = str(bounds.frontier).encode()
        self._keys: dict[bytes, _Entry] = {}
        self._chunk: dict[bytes, None] = {}
        self._chunk_bytes = 0
        self._tables: list[Any] = []
        self._rows = 0
        #: Number of a row, and column, of values that were replaced.
        self._far: list[OutOfRange] = []
        self._bytes = 0
        self._links: dict[bytes, set[bytes]] = {}
        self._versions: set[bytes] = set()
        self._read = 0

    def add(self, partition: int, records: Sequence[RawRecord]) -> None:
        """Take the next records of a partition.

        Raises:
            TooLarge: They take more than ``most_bytes``.
            LogError: ``bad_record``.
            LakeError: ``value_out_of_range``.
        """
        self._read += len(records)
        keys, end, start, truncate = self._keys, self._end, self._start, self._truncate
        last = b""
        for offset, key, value, headers in records:
            fields = dict(headers or ())
            position, version = fields.get(POSITION_HEADER), fields.get(SCHEMA_HEADER)
            if (
                key is None
                or position is None
                or version is None
                or _POSITION.fullmatch(position) is None
            ):
                raise bad_record(self._topic, partition, offset)
            if position == last:
                # All rows of a load share it: keep one.
                position = last
            last = position
            if position >= end or position < start:
                continue
            if version not in self._versions:
                self._check_version(self._version(version, partition, offset))
                self._versions.add(version)
            if position < truncate:
                continue
            row = _PENDING
            if value is not None and _UNSENT_MARK in value:
                if self._lacks(value, partition, offset):
                    row = _LACKS
                    if OLD_KEY_HEADER in fields:
                        self._links.setdefault(key, set()).add(fields[OLD_KEY_HEADER])
            known = keys.get(key)
            entry = (position, _UNKNOWN, row, version, value, partition, offset)
            if known is None or self._is_newer(entry, known):
                keys[key] = entry
                self._chunk[key] = None
                self._chunk_bytes += 0 if value is None else len(value)
        if len(self._chunk) >= _CHUNK_RECORDS or self._chunk_bytes >= _CHUNK_BYTES:
            self._parse()
        self._check_size()

    def found(self) -> Found:
        """All of it, once everything was added; raises as ``add``."""
        self._parse()
        self._check_size()
        rows = sorted(entry[2] for entry in self._keys.values() if entry[2] >= 0)
        lacking = frozenset(key for key, entry in self._keys.items() if entry[2] == _LACKS)
        taken = set(rows) if self._far else set()
        far = Counter(name for row, name in self._far if row in taken)
        found = Found(self._taken(rows), lacking, self._closure(lacking), self._read, far)
        self._keys.clear()
        return found

    # --- inside ---

    def _taken(self, rows: list[int]) -> list[Any]:
        """The tables without the rows that newer ones have replaced."""
        taken = []
        first = begin = 0
        for number, table in enumerate(self._tables):
            last = first + table.num_rows
            end = bisect_left(rows, last, begin)
            if end - begin < table.num_rows:
                table = table.take(pa.array([row - first for row in rows[begin:end]], pa.int64()))
            taken.append(table)
            # A copy takes the place of what it was made from: no more than one is there twice.
            self._tables[number] = None
            first = last
            begin = end
        return [table for table in taken if table.num_rows]

    def _is_newer(self, mine: _Pending, known: _Entry) -> bool:
        if mine[0] != known[0]:
            return mine[0] > known[0]
        rank, known_rank = self._rank(mine), self._rank(known)
        # Copies of one record have one key, so they lie in one partition, whose offsets come
        # in order.
        return rank >= known_rank

    def _rank(self, entry: _Entry) -> int:
        if len(entry) == 3:
            return entry[1]
        _, _, _, _, value, partition, offset = entry
        if value is None:
            return _TOMBSTONE
        return _DELETE if self._envelope(value, partition, offset).get("op") == "d" else _CREATE

    def _lacks(self, value: bytes, partition: int, offset: int) -> bool:
        source = self._envelope(value, partition, offset).get("source")
        return isinstance(source, dict) and bool(source.get("unchanged"))

    def _envelope(self, value: bytes, partition: int, offset: int) -> dict[str, Any]:
        try:
            found = orjson.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise bad_record(self._topic, partition, offset)
        return found

    def _version(self, text: bytes, partition: int, offset: int) -> int:
        try:
            return int(text)
        except ValueError:
            raise bad_record(self._topic, partition, offset) from None

    def _parse(self) -> None:
        """Type what the chunk's keys came to, and let go of their values."""
        records = []
        for key in self._chunk:
            entry = self._keys[key]
            if len(entry) == 3:
                continue
            position, _, row, version, value, partition, offset = entry
            if row == _LACKS:
                self._keys[key] = (position, self._rank(entry), _LACKS)
            else:
                records.append(Newest(key, value, position, version, partition, offset))
        self._chunk.clear()
        self._chunk_bytes = 0
        if not records:
            return
        far: list[OutOfRange] = []
        table = self._values.table(records, far)
        self._far += ((self._rows + row, name) for row, name in far)
        self._tables.append(table)
        self._bytes += table.nbytes
        gone = table.column(GONE_COLUMN).to_pylist()
        for row, (record, is_gone) in enumerate(zip(records, gone, strict=True), self._rows):
            rank = _CREATE
            if is_gone:
                rank = _TOMBSTONE if record.value is None else _DELETE
            self._keys[record.key] = (record.position, rank, row)
        self._rows += len(records)

    def _check_size(self) -> None:
        taken = self._bytes + self._chunk_bytes + len(self._keys) * _KEY_BYTES
        if taken > self._most_bytes:
            raise TooLarge

    def _closure(self, lacking: frozenset[bytes]) -> frozenset[bytes]:
        needed: set[bytes] = set()
        left = list(lacking)
        while left:
            key = left.pop()
            if key not in needed:
                needed.add(key)
                left += self._links.get(key, ())
        return frozenset(needed)
