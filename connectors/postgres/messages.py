"""The messages of Postgres' pgoutput plugin, protocol version 1.

Source: PostgreSQL documentation, "Logical Replication Message Formats". LSNs are 64-bit integers,
times are microseconds since the UNIX epoch in UTC. A namespace of '' stands for ``pg_catalog``,
as on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.unsent import Unsent

#: One value per column of the newest Relation message: text form, None for NULL, UNSENT for an
#: unchanged TOAST value. In a 'K' tuple the columns outside the identity are None as well,
#: which there means "not sent", never NULL.
Row = tuple[bytes | Unsent | None, ...]

#: '' no old tuple, 'K' identity columns only, 'O' the full old row (REPLICA IDENTITY FULL).
OldKind = Literal["", "K", "O"]

#: pg_class.relreplident: default, nothing, full, index.
Identity = Literal["d", "n", "f", "i"]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts; ``final_lsn`` is the START of its commit record."""

    final_lsn: int
    commit_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction ends; ``commit_lsn`` equals its Begin's ``final_lsn``."""

    commit_lsn: int
    end_lsn: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was itself replicated from another server."""

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column; ``in_key`` = part of the replica identity (all columns if FULL)."""

    name: str
    type_oid: int
    typmod: int
    in_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The table that ``relid`` stands for, from here on."""

    relid: int
    namespace: str
    name: str
    identity: Identity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """Name of a type that is not built in; precedes the Relation that uses it."""

    type_oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A row was added."""

    relid: int
    new: Row


@dataclass(frozen=True, slots=True)
class Update:
    """A row was changed; ``old`` is None iff ``old_kind`` is ''."""

    relid: int
    old_kind: OldKind
    old: Row | None
    new: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A row was removed; ``old_kind`` is 'K' or 'O'."""

    relid: int
    old_kind: OldKind
    old: Row


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables were emptied by one statement."""

    relids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """Written by pg_logical_emit_message; outside of any transaction unless transactional."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message = (
    Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage
)
