"""Records of a spool: the stream's own messages of one table, with where they stand. Pure.

A spool holds, in the order of the stream, the Relation in force and then the changes and
truncates of one table. Key null; value: the pgoutput message as it came; headers, all ASCII:
``cdc.position``, ``cdc.xid`` and ``cdc.commit_us`` of its transaction (docs/formats.md).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc.envelope import POSITION_HEADER
from cdc.errors import CdcError, LogError
from cdc.position import Position
from connectors.postgres.messages import Begin, Message
from connectors.postgres.pgoutput import decode

XID_HEADER: Final = "cdc.xid"
COMMIT_HEADER: Final = "cdc.commit_us"

Headers = list[tuple[str, bytes]]


class SpoolFrame:
    """The headers that all records of a transaction share, made once.

    Args:
        epoch: Of the source's history.
        begin: Of the transaction.
    """

    __slots__ = ("_common", "_prefix")

    def __init__(self, epoch: int, begin: Begin) -> None:
        self._prefix = b"%04X-%016X-" % (epoch, begin.final_lsn)
        self._common = [
            (XID_HEADER, b"%d" % begin.xid),
            (COMMIT_HEADER, b"%d" % begin.commit_us),
        ]

    def headers(self, ordinal: int) -> Headers:
        """Headers of the record of a change."""
        return [(POSITION_HEADER, b"%b%08X" % (self._prefix, ordinal)), *self._common]


@dataclass(frozen=True, slots=True)
class Spooled:
    """A record of a spool, read back.

    Args:
        position: Of the change; a Relation has the one of the change that it came before.
        xid: Of its transaction.
        commit_us: Its commit time.
        data: The pgoutput message.
        message: The same, decoded.
    """

    position: Position
    xid: int
    commit_us: int
    data: bytes
    message: Message

    @property
    def begin(self) -> Begin:
        """The Begin of its transaction."""
        return Begin(self.position.lsn, self.commit_us, self.xid)


def truncate_of(relid: int, *, cascade: bool, restart_identity: bool) -> bytes:
    """The Truncate message of one of the tables that a statement emptied."""
    return struct.pack(">cIBI", b"T", 1, cascade | restart_identity << 1, relid)


def read_spooled(
    topic: str, offset: int, value: bytes | None, headers: Sequence[tuple[str, bytes]] | None
) -> Spooled:
    """Read a record back.

    Raises:
        LogError: ``bad_record`` with topic and offset.
    """
    try:
        fields = dict(headers or ())
        if value is None:
            raise ValueError("no value")
        return Spooled(
            Position.parse(fields[POSITION_HEADER].decode()),
            int(fields[XID_HEADER]),
            int(fields[COMMIT_HEADER]),
            value,
            decode(value),
        )
    except (KeyError, ValueError, CdcError) as problem:
        raise LogError(
            "bad_record",
            f"record {topic}[0]@{offset} is not of a spool ({type(problem).__name__})",
            remedy="only capture may write this topic; cdc destroy the source and load it anew",
        ) from None
