"""Positions in a source's history: the order of everything in the log.

A position is (epoch, commit LSN, ordinal); see docs/formats.md. Bare LSNs do not order events:
BEGIN, a first change and the previous COMMIT can share one. Pure, no I/O.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from cdc.errors import LogError

MAX_EPOCH = 0xFFFF
MAX_LSN = 0xFFFF_FFFF_FFFF_FFFF
MAX_ORDINAL = 0xFFFF_FFFF
#: Ordinal of every snapshot row: above all ordinals of the transaction before it.
SNAPSHOT_ORDINAL = MAX_ORDINAL

_unpack = struct.Struct(">HQI").unpack
_LSN_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Position(NamedTuple):
    """(epoch, LSN of the commit record's start, ordinal from 1). Sorts as history does.

    A frontier is a position with ordinal 0 whose LSN is a commit's END: it stands for every
    record whose position is smaller. All ranges are half open, ``[P, F)``.
    """

    epoch: int
    lsn: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self[0]:04X}-{self[1]:016X}-{self[2]:08X}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text form; raises LogError for anything else."""
        # Every record that is read comes through here. fromhex() would take lower case and skip
        # spaces; with both dashes in place, 14 bytes are 28 digits.
        if len(text) == 30 and text[4] == "-" == text[21] and text == text.upper():
            try:
                return tuple.__new__(cls, _unpack(bytes.fromhex(text.replace("-", ""))))
            except (ValueError, struct.error):
                pass
        raise LogError("bad_position", f"not a position: {text[:40]!r}")


#: Below every event of every history.
ZERO = Position(0, 0, 0)


def frontier(epoch: int, end_lsn: int) -> Position:
    """The exclusive position of everything whose commit record starts before ``end_lsn``."""
    return Position(epoch, end_lsn, 0)


def snapshot_position(epoch: int, consistent_point: int) -> Position:
    """The position of all rows of a snapshot with this consistent point."""
    return Position(epoch, consistent_point - 1, SNAPSHOT_ORDINAL)


def format_lsn(lsn: int) -> str:
    """64-bit LSN to Postgres' text, ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Postgres' text of an LSN to an integer; raises LogError for anything else."""
    match = _LSN_TEXT.fullmatch(text)
    if match is None:
        raise LogError("bad_lsn", f"not an LSN: {text[:40]!r}")
    return (int(match[1], 16) << 32) | int(match[2], 16)
