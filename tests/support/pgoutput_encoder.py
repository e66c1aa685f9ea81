"""Encoder of pgoutput messages, written from the protocol's documentation for tests alone."""

import struct
from collections.abc import Iterable
from functools import singledispatch

from cdc.unsent import Unsent
from connectors.postgres.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)

_Y2K_US = 946_684_800_000_000


def int16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def int32(value: int, signed: bool = False) -> bytes:
    return value.to_bytes(4, "big", signed=signed)


def int64(value: int, signed: bool = False) -> bytes:
    return value.to_bytes(8, "big", signed=signed)


def string(text: str) -> bytes:
    return text.encode() + b"\0"


def row(values: Iterable[bytes | Unsent | None]) -> bytes:
    values = tuple(values)
    parts = [int16(len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unsent):
            parts.append(b"u")
        else:
            parts.append(b"t" + int32(len(value)) + value)
    return b"".join(parts)


@singledispatch
def encode(message: Message) -> bytes:
    raise TypeError(type(message))


@encode.register
def _(m: Begin) -> bytes:
    return b"B" + int64(m.final_lsn) + int64(m.commit_us - _Y2K_US, signed=True) + int32(m.xid)


@encode.register
def _(m: Commit) -> bytes:
    time = int64(m.commit_us - _Y2K_US, signed=True)
    return b"C\0" + int64(m.commit_lsn) + int64(m.end_lsn) + time


@encode.register
def _(m: Origin) -> bytes:
    return b"O" + int64(m.commit_lsn) + string(m.name)


@encode.register
def _(m: Relation) -> bytes:
    out = b"R" + int32(m.relid) + string(m.namespace) + string(m.name) + m.identity.encode()
    out += int16(len(m.columns))
    for c in m.columns:
        out += (b"\1" if c.in_key else b"\0") + string(c.name)
        out += int32(c.type_oid) + int32(c.typmod, signed=True)
    return out


@encode.register
def _(m: Type) -> bytes:
    return b"Y" + int32(m.type_oid) + string(m.namespace) + string(m.name)


@encode.register
def _(m: Insert) -> bytes:
    return b"I" + int32(m.relid) + b"N" + row(m.new)


@encode.register
def _(m: Update) -> bytes:
    old = b"" if m.old is None else m.old_kind.encode() + row(m.old)
    return b"U" + int32(m.relid) + old + b"N" + row(m.new)


@encode.register
def _(m: Delete) -> bytes:
    return b"D" + int32(m.relid) + m.old_kind.encode() + row(m.old)


@encode.register
def _(m: Truncate) -> bytes:
    flags = (1 if m.cascade else 0) | (2 if m.restart_identity else 0)
    return b"T" + int32(len(m.relids)) + bytes([flags]) + b"".join(map(int32, m.relids))


@encode.register
def _(m: LogicalMessage) -> bytes:
    flags = b"\1" if m.transactional else b"\0"
    return b"M" + flags + int64(m.lsn) + string(m.prefix) + int32(len(m.content)) + m.content


def xlog_data(payload: bytes, start: int = 0, end: int = 0) -> bytes:
    """A CopyData message with pgoutput inside."""
    return b"w" + int64(start) + int64(end) + int64(0) + payload


def keepalive(wal_end: int, reply: bool = False, sent_us: int = _Y2K_US) -> bytes:
    """A CopyData message that keeps the connection alive."""
    return b"k" + int64(wal_end) + int64(sent_us - _Y2K_US, signed=True) + bytes([reply])


def read_status(data):
    """(written, flushed, applied) of a standby status update; its form is checked."""
    tag, written, flushed, applied, _, reply = struct.unpack(">cQQQqB", data)
    assert (tag, reply) == (b"r", 0)
    return written, flushed, applied
