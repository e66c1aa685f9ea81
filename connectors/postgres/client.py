"""Connections to Postgres: the only file of the connector that has a socket.

``connect_sql`` is for the catalogs; ``ReplicationClient`` speaks the replication protocol by
libpq itself (psycopg.pq), because psycopg's cursors do not do replication.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from cdc.closing import Closing
from cdc.errors import CdcError, SourceError
from cdc.names import quote_ident, quote_literal
from cdc.position import format_lsn, parse_lsn
from cdc.session_settings import CLIENT_ENCODING, OPTIONS
from connectors.postgres import failures

#: One ``read`` returns about this many bytes at most (plus one message).
READ_LIMIT_BYTES = 4 * 1024 * 1024

#: A dead peer is noticed after about a minute, also while nothing is sent.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
    "application_name": "cdc",
}

_POLL_STEP_S = 1.0
_CLOSE_WITHIN_S = 2.0


class SystemIdentity(NamedTuple):
    """Answer of IDENTIFY_SYSTEM; ``wal_end`` is the server's flush position."""

    sysid: str
    timeline: int
    wal_end: int
    database: str | None


class CreatedSlot(NamedTuple):
    """A new slot; the snapshot holds until the client's next command or its end."""

    consistent_point: int
    snapshot: str | None


def conninfo_string(conninfo: Mapping[str, Any], **more: Any) -> str:
    """Connection string for libpq with our session settings; holds the password."""
    keywords = {**_DEFAULTS, **{k: v for k, v in conninfo.items() if v is not None}, **more}
    own = str(keywords.get("options") or "")
    # Ours come last, so they win: equal bytes of snapshot and stream depend on them.
    keywords["options"] = f"{own} {OPTIONS}".strip()
    keywords["client_encoding"] = CLIENT_ENCODING
    return make_conninfo("", **keywords)


def connect_sql(conninfo: Mapping[str, Any]) -> psycopg.Connection[tuple[Any, ...]]:
    """An ordinary connection in autocommit mode, with the session settings of the stream.

    Raises:
        CdcError: As ``failures.connect_failed``.
    """
    try:
        return psycopg.connect(conninfo_string(conninfo), autocommit=True)
    except psycopg.OperationalError as error:
        raise failures.connect_failed(str(error)) from None


class ReplicationClient(Closing):
    """One replication connection, bound to one database.

    Args:
        conninfo: libpq keywords (host, port, dbname, user, password, …).

    Raises:
        CdcError: As ``failures.connect_failed``.
    """

    def __init__(self, conninfo: Mapping[str, Any]) -> None:
        self._pg = pq.PGconn.connect(conninfo_string(conninfo, replication="database").encode())
        if self._pg.status != pq.ConnStatus.OK:
            message = self._pg.get_error_message()
            self._pg.finish()
            raise failures.connect_failed(message)
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._slot = ""
        self._streaming = False
        self._ended = False  # the stream's end was seen; libpq says so only once
        self._end_reason: CdcError | None = None
        if self._pg.parameter_status(b"server_encoding") == b"SQL_ASCII":
            # Its bytes are of any encoding. Sent as they are, they are refused by us, who know
            # which table they are of; the server would not say.
            self._execute("SET client_encoding TO 'SQL_ASCII'", "set the encoding")

    def __repr__(self) -> str:
        state = (
            "closed" if self.closed else f"streaming {self._slot!r}" if self._streaming else "open"
        )
        return f"<ReplicationClient {state}>"

    @property
    def closed(self) -> bool:
        """The connection has ended, by us or by the server."""
        return self._pg.status != pq.ConnStatus.OK

    @property
    def server_version(self) -> int:
        """As ``server_version_num``: 150012 for 15.12."""
        return self._pg.server_version

    def identify_system(self) -> SystemIdentity:
        """Who the server is and where its WAL ends."""
        row = self._row("IDENTIFY_SYSTEM", "identify the server")
        sysid, timeline, wal_end = row[0], row[1], row[2]
        if sysid is None or timeline is None or wal_end is None:
            raise SourceError("source_error", "the server does not say who it is")
        return SystemIdentity(sysid, int(timeline), parse_lsn(wal_end), row[3])

    def create_slot(
        self,
        slot: str,
        export_snapshot: bool,
        *,
        temporary: bool = False,
        on_wait: Callable[[float], None] | None = None,
    ) -> CreatedSlot:
        """Create a logical slot for pgoutput; waits for all running transactions to end.

        Args:
            slot: Its name.
            export_snapshot: Keep a snapshot of the consistent point for others to import.
            temporary: Drop it with this connection.
            on_wait: Told about once a second how many seconds have passed; may raise, which
                ends the connection, and with it the half-made slot.

        Raises:
            CdcError: ``slot_exists``, ``no_free_slot``, ``no_permission``, …
        """
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        word = "export" if export_snapshot else "nothing"
        if self.server_version >= 150000:
            snapshot = f"(SNAPSHOT '{word}')"
        else:
            snapshot = "EXPORT_SNAPSHOT" if export_snapshot else "NOEXPORT_SNAPSHOT"
        # The wait for running transactions is one for locks; ``on_wait`` says when to give up.
        self._execute("SET lock_timeout TO 0", "create the replication slot")
        row = self._row(
            f"CREATE_REPLICATION_SLOT {quote_ident(slot)} {kind} pgoutput {snapshot}",
            "create the replication slot",
            slot,
            on_wait,
        )
        if row[1] is None:
            raise SourceError("source_error", "the new slot has no consistent point")
        return CreatedSlot(parse_lsn(row[1]), row[2])

    def drop_slot(self, slot: str) -> None:
        """Drop a slot; raises ``slot_missing`` or ``slot_active``."""
        self._execute(
            f"DROP_REPLICATION_SLOT {quote_ident(slot)}", "drop the replication slot", slot
        )

    def start_replication(
        self, slot: str, lsn: int, publication: str, *, messages: bool = False
    ) -> None:
        """Start streaming; from here on only read, send and close may be used.

        Args:
            slot: The slot.
            lsn: Where to start; Postgres silently moves a value below the slot's
                confirmed_flush_lsn up to it.
            publication: Name of the publication.
            messages: Ask for LogicalMessage, too.

        Raises:
            CdcError: ``slot_missing``, ``slot_active``, ``slot_lost``, ``no_permission``, …
        """
        options = f"proto_version '1', publication_names {quote_literal(quote_ident(publication))}"
        if messages:
            options += ", messages 'true'"
        command = (
            f"START_REPLICATION SLOT {quote_ident(slot)} LOGICAL {format_lsn(lsn)} ({options})"
        )
        result = self._execute(command, failures.STARTING, slot)
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise SourceError("source_error", "the server did not start to stream")
        self._slot = slot
        self._streaming = True

    def read(self, timeout_s: float, limit: int = READ_LIMIT_BYTES) -> list[bytes]:
        """All CopyData messages that are there, in order.

        Waits only if there is none, and returns an empty list after ``timeout_s`` seconds.

        Args:
            timeout_s: Longest wait.
            limit: Stop after about so many bytes; the rest stays with libpq and the kernel,
                which then slows the server down.

        Raises:
            SourceError: ``connection_lost``, ``server_stopping``, or what the server reports.
        """
        batch: list[bytes] = []
        size = 0
        deadline = time.monotonic() + timeout_s
        get = self._pg.get_copy_data
        fresh = False  # libpq's buffer was just filled
        try:
            while size < limit and not self._ended:
                length, view = get(1)
                if length > 0:
                    batch.append(bytes(view))
                    size += length
                    fresh = False
                elif length < 0:
                    self._ended = True
                    break
                elif not fresh:
                    # Also without a readable socket: TLS may hold bytes that poll cannot see.
                    self._pg.consume_input()
                    fresh = True
                elif batch or not self._readable(deadline - time.monotonic()):
                    break
                else:
                    fresh = False
        except psycopg.OperationalError as error:
            if not batch:
                raise self._lost(error) from None
        if self._ended and not batch:
            raise self._stream_end()
        return batch

    def send(self, data: bytes) -> None:
        """Send one CopyData message, such as a status update.

        Raises:
            SourceError: ``connection_lost``, or why the server ended the stream.
        """
        if self._ended:
            raise self._stream_end()
        try:
            self._pg.put_copy_data(data)
            self._pg.flush()
        except psycopg.OperationalError as error:
            raise self._lost(error) from None

    def close(self) -> None:
        """End the connection; may be called again.

        While streaming, the end is announced and what still comes is thrown away for up to two
        seconds: closing at once could make the kernel drop a status that was just sent.
        """
        if self._streaming and not self.closed:
            self._streaming = False
            deadline = time.monotonic() + _CLOSE_WITHIN_S
            try:
                self._pg.put_copy_end()
                self._pg.flush()
                while (left := deadline - time.monotonic()) > 0:
                    length, _ = self._pg.get_copy_data(1)
                    if length < 0:
                        break
                    if length == 0:
                        self._readable(left)
                        self._pg.consume_input()
            except psycopg.OperationalError:
                pass  # it is ending anyway
        self._pg.finish()

    def _readable(self, timeout_s: float) -> bool:
        return bool(self._poll.poll(max(0.0, timeout_s) * 1000))

    def _lost(self, error: psycopg.OperationalError) -> CdcError:
        return failures.connection_lost(" ".join(str(error).split()))

    def _stream_end(self) -> CdcError:
        """Why the server ended the stream; asked of libpq once, then kept."""
        if self._end_reason is None:
            self._streaming = False
            self._end_reason = self._read_end_reason()
        return self._end_reason

    def _read_end_reason(self) -> CdcError:
        try:
            result = self._pg.get_result()
        except psycopg.OperationalError as error:
            return self._lost(error)
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return self._failure(result, failures.STREAMING, self._slot)
        return SourceError("server_stopping", "Postgres ended the stream: it is stopping")

    def _row(
        self,
        command: str,
        doing: str,
        slot: str = "",
        on_wait: Callable[[float], None] | None = None,
    ) -> list[str | None]:
        result = self._execute(command, doing, slot, on_wait)
        if result.status != pq.ExecStatus.TUPLES_OK or result.ntuples != 1:
            raise SourceError("source_error", f"cannot {doing}: unexpected answer of the server")
        values = (result.get_value(0, column) for column in range(result.nfields))
        return [None if value is None else value.decode() for value in values]

    def _execute(
        self,
        command: str,
        doing: str,
        slot: str = "",
        on_wait: Callable[[float], None] | None = None,
    ) -> pq.abc.PGresult:
        # In steps, not by exec_: a signal handler must be able to run while the server works.
        started = time.monotonic()
        try:
            self._pg.send_query(command.encode())
            self._pg.flush()
            while self._pg.is_busy():
                if self._readable(_POLL_STEP_S):
                    self._pg.consume_input()
                elif on_wait is not None:
                    on_wait(time.monotonic() - started)
            first = self._pg.get_result()
            if first is None:
                raise SourceError("source_error", f"cannot {doing}: no answer of the server")
            if first.status != pq.ExecStatus.COPY_BOTH:
                while self._pg.get_result() is not None:
                    pass
        except psycopg.OperationalError as error:
            raise self._lost(error) from None
        if first.status == pq.ExecStatus.FATAL_ERROR:
            raise self._failure(first, doing, slot)
        return first

    def _failure(self, result: pq.abc.PGresult, doing: str, slot: str) -> CdcError:
        def text(field: pq.DiagnosticField) -> str | None:
            value = result.error_field(field)
            return None if value is None else value.decode("utf-8", "replace")

        sqlstate = text(pq.DiagnosticField.SQLSTATE)
        primary = text(pq.DiagnosticField.MESSAGE_PRIMARY)
        if sqlstate is None and primary is None:  # made by libpq, not by the server
            return failures.connection_lost(" ".join(result.get_error_message().split()))
        return failures.server_error(sqlstate, primary or "no reason given", doing, slot)
