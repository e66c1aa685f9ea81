"""The replication session without its socket: CopyData in, events and feedback out.

    session = ReplicationSession(start_lsn, now=time.monotonic())
    for data in client.read(session.seconds_to_status(now)):
        event = session.receive(data)       # a pgoutput message, or a Keepalive
    status = session.feedback(now)          # bytes to send, or None
    session.confirm(lsn)                    # after Kafka has committed everything below

The session never confirms anything by itself. What it sends never goes backwards, and never
beyond what this server has reported, whatever it was told to confirm.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cdc.errors import ProtocolViolation
from cdc.position import format_lsn
from connectors.postgres.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Update,
)
from connectors.postgres.pgoutput import POSTGRES_EPOCH_US, decode

#: A status is due after this many seconds even if nothing happened; the server's own limit
#: (wal_sender_timeout) is 60 s by default.
STATUS_INTERVAL_S = 10.0

#: Tag of a CopyData message that holds a pgoutput message, and where that begins.
XLOG_DATA = ord("w")
_KEEPALIVE = ord("k")
XLOG_HEADER_SIZE = 25
_header = struct.Struct(">QQ").unpack_from
_keepalive = struct.Struct(">cQqB")
_status = struct.Struct(">cQQQqB")


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server lives; its decoder has passed ``wal_end``.

    Outside of a transaction every transaction whose commit record starts below ``wal_end`` has
    been delivered. It can be lower than the last Commit's ``end_lsn``.
    """

    wal_end: int
    sent_us: int
    reply_requested: bool


Event = Message | Keepalive


class ReplicationSession:
    """State of one START_REPLICATION: the open transaction and the LSNs of the feedback.

    Args:
        start_lsn: The slot's confirmed_flush_lsn, where streaming starts.
        now: Monotonic seconds, as for every later call.
        status_interval_s: Longest silence of ours, in seconds.
    """

    __slots__ = (
        "_begin",
        "_confirmed",
        "_last_end",
        "_last_status",
        "_received",
        "_reply_requested",
        "_sent_flushed",
        "_status_interval",
    )

    def __init__(
        self, start_lsn: int, now: float, status_interval_s: float = STATUS_INTERVAL_S
    ) -> None:
        self._begin: Begin | None = None
        self._last_end = 0
        self._received = start_lsn
        self._confirmed = start_lsn
        self._sent_flushed = start_lsn
        self._last_status = now
        self._status_interval = status_interval_s
        self._reply_requested = False

    def __repr__(self) -> str:
        begin = self._begin
        state = f"in transaction {begin.xid} at {format_lsn(begin.final_lsn)}" if begin else "idle"
        return (
            f"<ReplicationSession {state}, received {format_lsn(self._received)}, "
            f"confirmed {format_lsn(self._confirmed)}, sent {format_lsn(self._sent_flushed)}>"
        )

    @property
    def in_transaction(self) -> bool:
        """A Begin was received and its Commit was not."""
        return self._begin is not None

    @property
    def transaction(self) -> Begin | None:
        """The open transaction."""
        return self._begin

    @property
    def received(self) -> int:
        """The highest LSN that the server has reported."""
        return self._received

    @property
    def flushed(self) -> int:
        """The LSN that the next status reports as flushed."""
        return max(self._sent_flushed, min(self._confirmed, self._received))

    def receive(self, data: bytes) -> Event:
        """Decode one CopyData message and check that it may come now.

        Raises:
            ProtocolViolation: codes of ``pgoutput.decode``, and ``unexpected_message`` for a
                message that is complete but out of order.
        """
        tag = data[0] if data else 0
        if tag == XLOG_DATA:
            if len(data) <= XLOG_HEADER_SIZE:
                raise ProtocolViolation("malformed_message", "an XLogData message is cut short")
            start, end = _header(data, 1)
            message = decode(data, XLOG_HEADER_SIZE)
            self._check(message)
            # No cursors (Relation messages carry 0/0, changes their own record's LSN), but
            # nothing that was reported can lie beyond the server's WAL.
            if end > self._received:
                self._received = end
            if start > self._received:
                self._received = start
            return message
        if tag == _KEEPALIVE:
            if len(data) != _keepalive.size:
                raise ProtocolViolation(
                    "malformed_message", f"a keepalive of {len(data)} bytes instead of 18"
                )
            _, wal_end, sent, reply = _keepalive.unpack(data)
            if reply > 1:
                raise ProtocolViolation("malformed_message", "a keepalive with unknown flags")
            if reply:
                self._reply_requested = True
            if wal_end > self._received:
                self._received = wal_end
            return Keepalive(wal_end, sent + POSTGRES_EPOCH_US, bool(reply))
        raise ProtocolViolation(
            "unknown_message", f"CopyData tag 0x{tag:02x} is not of the replication protocol"
        )

    def receive_inserts(self, run: Sequence[bytes]) -> None:
        """Take in a run of inserts that somebody else decodes (``inserts.py``).

        Raises:
            ProtocolViolation: ``unexpected_message`` outside of a transaction.
        """
        if self._begin is None:
            raise ProtocolViolation("unexpected_message", "Insert outside of a transaction")
        # Those before it lie below; were it not so, less would be reported than is known.
        start, end = _header(run[-1], 1)
        self._received = max(self._received, start, end)

    def _check(self, message: Message) -> None:
        kind = type(message)
        begin = self._begin
        if kind is Insert or kind is Update or kind is Delete:  # the hot path first
            if begin is None:
                raise self._unexpected(message)
        elif isinstance(message, Begin):
            if begin is not None:
                raise self._unexpected(message)
            if message.final_lsn < self._last_end:
                raise ProtocolViolation(
                    "unexpected_message",
                    f"a transaction follows the commit that ended at {format_lsn(self._last_end)}",
                    position=format_lsn(message.final_lsn),
                )
            self._begin = message
        elif isinstance(message, Commit):
            if begin is None:
                raise self._unexpected(message)
            if message.commit_lsn != begin.final_lsn or message.end_lsn <= message.commit_lsn:
                raise ProtocolViolation(
                    "unexpected_message",
                    f"the Commit at {format_lsn(message.commit_lsn)}, ending at "
                    f"{format_lsn(message.end_lsn)}, is not of the open transaction",
                    position=format_lsn(begin.final_lsn),
                )
            self._begin = None
            self._last_end = message.end_lsn
            if message.end_lsn > self._received:
                self._received = message.end_lsn
        elif begin is None and not (
            isinstance(message, LogicalMessage) and not message.transactional
        ):
            raise self._unexpected(message)

    def _unexpected(self, message: Message) -> ProtocolViolation:
        begin = self._begin
        return ProtocolViolation(
            "unexpected_message",
            f"{type(message).__name__} {'inside' if begin else 'outside'} of a transaction",
            position=format_lsn(begin.final_lsn) if begin else None,
        )

    def confirm(self, lsn: int) -> None:
        """Everything below ``lsn`` is committed in Kafka; a lower value than before is ignored.

        A value beyond what this session has received is held back until the server reports it.
        """
        if lsn > self._confirmed:
            self._confirmed = lsn

    def seconds_to_status(self, now: float) -> float:
        """Seconds until ``feedback`` has something to send, if nothing else happens."""
        if self._reply_requested or self.flushed > self._sent_flushed:
            return 0.0
        return max(0.0, self._last_status + self._status_interval - now)

    def feedback(
        self, now: float, unix_us: int, *, force: bool = False, ask: bool = False
    ) -> bytes | None:
        """The standby status update to send now, or None.

        It is due when the server asked for it, when more was confirmed, or when the interval
        has passed.

        Args:
            now: Monotonic seconds.
            unix_us: Wall clock, microseconds since the UNIX epoch.
            force: Send whether due or not, as before a stop.
            ask: Send whether due or not, and let the server answer with a keepalive, which
                tells where its WAL ends.
        """
        if not force and not ask and self.seconds_to_status(now) > 0.0:
            return None
        flushed = self.flushed
        self._sent_flushed = flushed
        self._last_status = now
        self._reply_requested = False
        # ``applied`` is for synchronous standbys; equal to flushed, like Postgres' own worker
        # once it is idle.
        return _status.pack(
            b"r", max(self._received, flushed), flushed, flushed, unix_us - POSTGRES_EPOCH_US, ask
        )
