"""Capture's loop over one replication connection: read, route, commit to Kafka, confirm.

Nothing is confirmed to Postgres beyond the newest frontier that Kafka has committed.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

from cdc.errors import LogError, ProtocolViolation, SourceError, SourceStopped
from cdc.frontier import LastTransaction
from connectors.postgres.client import ReplicationClient
from connectors.postgres.failures import undecodable
from connectors.postgres.history import KnownHistory
from connectors.postgres.inserts import end_of_run
from connectors.postgres.log_writer import LogWriter
from connectors.postgres.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
)
from connectors.postgres.remedies import RELOAD_REMEDY
from connectors.postgres.router import SMALL_MESSAGE, Router
from connectors.postgres.session import XLOG_HEADER_SIZE, Keepalive, ReplicationSession
from connectors.postgres.stopping import StoppedAt
from connectors.postgres.stream_hooks import StreamHooks

log = structlog.get_logger(__name__)

#: A group of whole transactions is committed when nothing more is there at once, or at these.
_GROUP_RECORDS: Final = 40_000
_GROUP_S: Final = 0.5
#: A large transaction is committed in parts of about this size.
_PART_RECORDS: Final = 50_000
_PART_S: Final = 5.0
_CHECK_EVERY_RECORDS: Final = 1000
#: A quiet source's frontier moves at most so often.
_QUIET_S: Final = 1.0
_ASK_EVERY_S: Final = 0.2
#: A frontier that does not move is repeated, so that its topic never runs empty.
_REPEAT_FULL_S: Final = 3600.0
#: Kafka may be silent for so long before we let go of Postgres.
_KAFKA_SILENCE_S: Final = 30.0
#: A stop waits for the end of a transaction that is half written.
_STOP_WITHIN_S: Final = 10.0


class _Interrupted(Exception):
    """A stop was asked for while a re-read waits."""


class Stream:
    """One replication connection that has started to stream.

    Args:
        client: Streaming.
        start: From where, the slot's confirmed_flush_lsn.
        hooks: Of the process around.
    """

    def __init__(self, client: ReplicationClient, start: int, hooks: StreamHooks) -> None:
        self._client = client
        self._start = start
        self._session = ReplicationSession(start, time.monotonic())
        self._hooks = hooks
        self._router: Router
        self._writer: LogWriter
        self._offset = 0
        self._history = KnownHistory(0, 0, None)
        self._stop_before: int | None = None
        self._reached = False
        self._skipping = False
        self._xid = 0
        self._outstanding: LastTransaction | None = None
        self._outstanding_end = 0
        self._unconfirmed: int | None = None
        self._quiet_lsn = 0
        self._quiet_time = 0.0
        self._reply_wanted = False
        self._asked = 0.0
        self._check_at = 0
        self._part_from = 0
        self._group_from = 0
        self._silent_since: float | None = None
        #: Source transactions taken in.
        self.transactions = 0

    @property
    def reached(self) -> bool:
        """Whether the stream ended at ``stop_before``."""
        return self._reached

    @property
    def lag_bytes(self) -> int:
        """WAL that the server has told of, beyond the newest frontier."""
        return max(0, self._session.received - self._writer.end_lsn)

    def run(self, router: Router, writer: LogWriter, stop_before: int | None = None) -> None:
        """Stream until a stop is requested, or up to a transaction.

        Args:
            router: Made for this connection.
            writer: Of the log.
            stop_before: Return before the transaction whose commit record starts here.

        Raises:
            StoppedAt: A change cannot be captured; nothing of its transaction is committed
                below a frontier.
            CdcError: From Postgres or Kafka; what was not confirmed comes again.
        """
        self._router, self._writer = router, writer
        self._stop_before = stop_before
        self._offset = writer.end_lsn
        self._history = KnownHistory(self._offset, self._start, writer.last)
        stop, session = self._hooks.stop, self._session
        try:
            while not (stop.requested and self._may_stop()):
                self._silent_since = None
                self.keep_alive()
                batch = self._read()
                if batch:
                    try:
                        self._take(batch)
                    except SourceStopped as stopped:
                        raise self._stopped(stopped) from None
                    if self._reached:
                        break
                elif self._outstanding is not None and not session.in_transaction:
                    self._commit()
                    self._confirm()
                elif self._unconfirmed is not None:
                    self._confirm()
                if not session.in_transaction:
                    self._quiet()
                    self._border()
                elif writer.age > _PART_S:
                    self._part()
                self._hooks.tick()
        except _Interrupted:
            self._writer.abort()
            self._outstanding = None
        except ProtocolViolation as violation:
            if self._outstanding is not None and not session.in_transaction:
                self._commit()
            begin = session.transaction
            lsn = begin.final_lsn if begin else session.received
            raise self._stopped(undecodable(violation, lsn, RELOAD_REMEDY)) from None
        self._finish()

    def keep_alive(self) -> None:
        """Send the status that is due, if any."""
        session = self._session
        now = time.monotonic()
        if session.seconds_to_status(now) <= 0.0:
            self._send(session.feedback(now, time.time_ns() // 1000))

    def ask_position(self) -> None:
        """Let the server tell how far it is, which it does seldom while it is quiet."""
        now = time.monotonic()
        if now - self._asked >= _ASK_EVERY_S:
            self._asked = now
            self._send(self._session.feedback(now, time.time_ns() // 1000, ask=True))

    def kafka_waits(self) -> None:
        """A call to Kafka is taking its time: answer Postgres, but not for ever."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > _KAFKA_SILENCE_S:
            raise LogError(
                "kafka_timeout",
                f"Kafka has not answered for {_KAFKA_SILENCE_S:.0f} s; letting go of Postgres",
                remedy="is the broker up and healthy?",
            )
        self.keep_alive()

    def reread_waits(self) -> None:
        """A re-read waits: answer Postgres, and keep Kafka's transaction young."""
        self.keep_alive()
        if self._hooks.stop.requested:
            raise _Interrupted
        if self._writer.age > _PART_S:
            self._part()

    # --- inside: one batch ---

    def _read(self) -> list[bytes]:
        try:
            return self._client.read(self._timeout())
        except SourceError as error:
            if error.code != "bad_value" or self._session.transaction is None:
                raise
            # The server cannot send a value of the open transaction; it does not say which.
            stopped = SourceStopped(
                error.code,
                "a value is not valid in the database's encoding, so Postgres cannot send it",
                position=str(self._router.position),
                remedy=f"mend the value at the source; then {RELOAD_REMEDY}",
            )
            raise self._stopped(stopped) from None

    def _take(self, batch: list[bytes]) -> None:
        receive, router = self._session.receive, self._router
        change = router.change
        router.take(batch)
        index, count = 0, len(batch)
        one_by_one = 0  # until there
        while index < count:
            data = batch[index]
            event = receive(data)
            kind = type(event)
            if kind is Insert or kind is Update or kind is Delete:
                if not self._skipping:
                    change(event, len(data), index)  # type: ignore[arg-type]
                    if router.records >= self._check_at:
                        self._check_limits()
                    if kind is Insert and index >= one_by_one:
                        end = end_of_run(batch, index, SMALL_MESSAGE)
                        if self._take_run(batch[index + 1 : end], event.relid):  # type: ignore[union-attr]
                            index = end
                            continue
                        one_by_one = end
            elif isinstance(event, Keepalive):
                self._keepalive(event)
            elif isinstance(event, Begin):
                self._begin(event)
                if self._reached:
                    return
            elif isinstance(event, Commit):
                self._commit_seen(event)
            elif isinstance(event, Relation):
                router.relation(event, data[XLOG_HEADER_SIZE:])
            elif isinstance(event, Truncate):
                if not self._skipping:
                    router.truncate(event)
            index += 1

    def _take_run(self, run: list[bytes], relid: int) -> bool:
        """Take inserts that follow one of their relation, unless they are better taken singly."""
        if not run or not self._router.inserts(relid, run):
            return False
        self._session.receive_inserts(run)
        if self._router.records >= self._check_at:
            self._check_limits()
        return True

    def _begin(self, begin: Begin) -> None:
        if self._stop_before is not None and begin.final_lsn >= self._stop_before:
            self._reached = True
            return
        if self._history.holds(begin):
            self._skipping = True
            return
        self._pass_history()
        self._xid = begin.xid
        self._writer.open()
        self._router.begin(begin)

    def _commit_seen(self, commit: Commit) -> None:
        if self._skipping:
            self._skipping = False
            self._history.check_end(commit)
            return
        router = self._router
        router.commit()
        self.transactions += 1
        self._outstanding = LastTransaction(commit.commit_lsn, self._xid, commit.commit_us)
        self._outstanding_end = commit.end_lsn
        if router.records - self._group_from >= _GROUP_RECORDS or self._writer.age >= _GROUP_S:
            self._commit()
        # Not left to the end of a batch, which may always be within a transaction.
        self._border()

    def _border(self) -> None:
        if self._hooks.border_wanted():
            if self._outstanding is not None:
                self._commit()
            self._hooks.at_border()

    def _keepalive(self, keepalive: Keepalive) -> None:
        self._reply_wanted |= keepalive.reply_requested
        if self._session.in_transaction:
            return
        if keepalive.wal_end > self._quiet_lsn:
            self._quiet_lsn = keepalive.wal_end
        if keepalive.wal_end >= self._offset:
            self._pass_history()

    def _pass_history(self) -> None:
        """Everything that the log holds has come again: from here on it is new."""
        if not self._history.passed:
            self._history.pass_on()
            self._session.confirm(self._offset)

    def _stopped(self, stopped: SourceStopped) -> StoppedAt:
        begin = self._session.transaction
        return StoppedAt(begin.final_lsn if begin else None, stopped)

    # --- inside: commits ---

    def _commit(self) -> None:
        """Commit the group with its frontier."""
        router, writer = self._router, self._writer
        writer.advance(self._outstanding_end, self._outstanding, router.take_control())
        self._outstanding = None
        self._part_from = self._group_from = router.records
        self._check_at = router.records + _CHECK_EVERY_RECORDS
        # Kafka begins a transaction only when the one before is marked in all partitions, so
        # under load the next commit spares the question (``_confirm``).
        if self._unconfirmed is not None:
            self._session.confirm(self._unconfirmed)
        self._unconfirmed = writer.end_lsn

    def _part(self) -> None:
        """Commit what there is of a transaction that is half written."""
        router = self._router
        self._writer.part(router.take_control())
        self._writer.open()
        self._part_from = router.records

    def _check_limits(self) -> None:
        records = self._router.records
        self._check_at = records + _CHECK_EVERY_RECORDS
        if records - self._part_from >= _PART_RECORDS or self._writer.age >= _PART_S:
            self._part()

    def _quiet(self) -> None:
        """Move the frontier of a quiet source to where the server's WAL ends."""
        if self._outstanding is not None:
            return
        writer, now = self._writer, time.monotonic()
        moved = self._quiet_lsn > writer.end_lsn or bool(self._router.control)
        rested = now - self._quiet_time >= _QUIET_S
        if (moved and (self._reply_wanted or rested)) or (
            writer.seconds_since_full > _REPEAT_FULL_S
        ):
            self._quiet_time = now
            lsn = max(self._quiet_lsn, writer.end_lsn)
            writer.advance(lsn, None, self._router.take_control())
            self._confirm()
        self._reply_wanted = False

    def _confirm(self) -> None:
        """Confirm the newest frontier, once readers of the log can see it.

        Kafka says that a transaction is committed a moment before it marks it so in the
        partitions; whoever compares the slot with the log must never see the slot ahead.
        """
        pause = 0.001
        while self._hooks.frontier_stable() < self._writer.frontier_end:
            self.kafka_waits()
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        self._unconfirmed = None
        self._session.confirm(self._writer.end_lsn)
        self.keep_alive()

    def _timeout(self) -> float:
        longest = self._hooks.longest_read()
        if self._session.in_transaction:
            return longest
        if self._outstanding is not None or self._unconfirmed is not None:
            return 0.0
        if self._quiet_lsn > self._writer.end_lsn:
            due = self._quiet_time + _QUIET_S - time.monotonic()
            return min(longest, max(0.0, due))
        return longest

    # --- inside: the end ---

    def _may_stop(self) -> bool:
        asked = self._hooks.stop.requested_at
        return not self._session.in_transaction or (
            asked is not None and time.monotonic() - asked > _STOP_WITHIN_S
        )

    def _finish(self) -> None:
        if self._outstanding is not None and (self._reached or not self._session.in_transaction):
            self._commit()
        elif self._writer.is_open:
            self._writer.abort()
        if self._unconfirmed is not None:
            self._confirm()
        if not self._reached:
            self._writer.write_offset()
        self._send(self._session.feedback(time.monotonic(), time.time_ns() // 1000, force=True))

    def _send(self, status: bytes | None) -> None:
        if status is None:
            return
        try:
            self._client.send(status)
        except SourceError:
            # At the end of a replay nothing depends on the connection any more, and the server
            # may have ended it on the very transaction that we stop at.
            if not self._reached:
                raise
