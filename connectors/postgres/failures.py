"""Errors of libpq and the server, told in our words. Pure.

Only the server's primary message is passed on: its DETAIL can hold a row's values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from cdc.errors import (
    CdcError,
    EnvironmentProblem,
    HistoryGap,
    ProtocolViolation,
    SourceError,
    SourceStopped,
)
from cdc.names import quote_literal
from cdc.position import format_lsn

#: Codes of errors that can pass by themselves: try again with a growing delay.
RETRYABLE_CODES = frozenset(
    {
        "connection_lost",
        "server_starting",
        "server_stopping",
        "server_unreachable",
        "slot_active",
        "too_many_connections",
    }
)

#: What ``server_error`` must tell apart.
STARTING = "start replication"
STREAMING = "stream changes"

_PID = re.compile(r"(\d+)\D*$")


def is_retryable(error: CdcError) -> bool:
    """Whether the same attempt may succeed a little later."""
    return error.code in RETRYABLE_CODES


def slot_missing(slot: str) -> HistoryGap:
    """The slot is not there, so WAL that we need may be gone."""
    return HistoryGap(
        "slot_missing",
        f"replication slot {slot!r} does not exist",
        remedy="a slot made now starts now: take a new snapshot of the source's tables",
    )


def slot_lost(slot: str) -> HistoryGap:
    """The slot is there, but the server has removed WAL that it needs."""
    return HistoryGap(
        "slot_lost",
        f"replication slot {slot!r} has lost its place: the server has removed WAL it needs",
        remedy=f"SELECT pg_drop_replication_slot({quote_literal(slot)}); then take a new "
        "snapshot; raise max_slot_wal_keep_size first",
    )


def slot_active(slot: str, pid: int | None) -> SourceError:
    """Somebody else streams from the slot."""
    by = f" by the server process {pid}" if pid else ""
    return SourceError(
        "slot_active",
        f"replication slot {slot!r} is in use{by}",
        remedy="stop the other reader, or wait until its connection ends"
        + (f": SELECT pg_terminate_backend({pid});" if pid else ""),
    )


def connection_lost(why: str) -> SourceError:
    """The connection ended; what was not confirmed comes again on the next one."""
    return SourceError("connection_lost", f"the connection to Postgres was lost: {why}")


def undecodable(violation: ProtocolViolation, lsn: int, reload: str) -> SourceStopped:
    """The server would send the same bytes again, so the source stops.

    A connection that is cut never shows as such bytes: libpq gives whole messages only.

    Args:
        violation: What was wrong.
        lsn: The open transaction's commit, or what was received last.
        reload: How the source is loaded anew.
    """
    return SourceStopped(
        violation.code,
        f"Postgres sent what is not its replication protocol: {violation.message}",
        table=violation.table,
        position=violation.position or format_lsn(lsn),
        remedy="check that nothing between cdc and Postgres changes the stream, and that the "
        f"server is of a supported release; then {reload}",
    )


def server_error(sqlstate: str | None, message: str, doing: str, slot: str = "") -> CdcError:
    """Map an error that the server reported.

    Args:
        sqlstate: Its five characters.
        message: Its primary message.
        doing: What was attempted: STARTING, STREAMING, or other words for the message.
        slot: The slot concerned, if any.
    """
    state = sqlstate or ""
    text = _one_line(message)
    # The server looks for the slot at the start and for the publication at the first change.
    # Told by the moment, not by the text, which can be translated.
    if slot and state == "42704" and doing != STREAMING:
        return slot_missing(slot)
    if slot and state == "55006":
        match = _PID.search(text)
        return slot_active(slot, int(match[1]) if match else None)
    if slot and (state == "58P01" or (state == "55000" and doing in (STARTING, STREAMING))):
        return slot_lost(slot)
    if slot and state == "42710":
        return SourceError(
            "slot_exists",
            f"a replication slot {slot!r} exists already and is not ours",
            remedy="name another slot in cdc.yaml, or drop it if nobody needs it: "
            f"SELECT pg_drop_replication_slot({quote_literal(slot)});",
        )
    if state == "42704" and doing == STREAMING:
        return HistoryGap(
            "publication_missing",
            f"the publication is gone: {text}",
            remedy="changes made meanwhile were not recorded: take a new snapshot",
        )
    if state in ("22021", "22P05"):
        # The message would show bytes of the value.
        return SourceError(
            "bad_value", f"cannot {doing}: a value is not valid in the database's encoding"
        )
    if state in ("28P01", "28000"):
        return _authentication_failed(text)
    if state == "3D000":
        return EnvironmentProblem("database_missing", text, remedy="check `database` in cdc.yaml")
    if state == "42501":
        return EnvironmentProblem("no_permission", f"cannot {doing}: {text}")
    if state == "53400":
        return EnvironmentProblem(
            "no_free_slot",
            f"cannot {doing}: {text}",
            remedy="ALTER SYSTEM SET max_replication_slots = …; then restart the server",
        )
    if state in ("53300", "53200"):
        return EnvironmentProblem("too_many_connections", text)
    if state in ("57P01", "57P02"):
        return SourceError("server_stopping", f"Postgres is stopping: {text}")
    if state == "57P03":
        return SourceError("server_starting", f"Postgres is not ready: {text}")
    if state[:2] == "08":
        return connection_lost(text)
    return SourceError("source_error", f"cannot {doing}: {text}")


def connect_failed(message: str) -> CdcError:
    """Map a failed connection attempt, of which libpq gives the text only."""
    text = _one_line(message)
    if "FATAL" not in text:
        return EnvironmentProblem(
            "server_unreachable",
            f"cannot connect to Postgres: {text}",
            remedy="check host and port in cdc.yaml, and that the server runs",
        )
    if "starting up" in text or "recovery" in text or "not yet accepting" in text:
        return SourceError("server_starting", f"Postgres is not ready: {text}")
    if "shutting down" in text:
        return SourceError("server_stopping", f"Postgres is stopping: {text}")
    if "max_wal_senders" in text or "too many" in text or "connection slots" in text:
        return EnvironmentProblem(
            "too_many_connections",
            f"Postgres has no room for one more connection: {text}",
            remedy="raise max_wal_senders or max_connections",
        )
    if "database" in text and "does not exist" in text:
        return EnvironmentProblem("database_missing", text, remedy="check `database` in cdc.yaml")
    return _authentication_failed(text)


def _authentication_failed(text: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        "authentication_failed",
        f"Postgres refused the connection: {text}",
        remedy="check user and password in cdc.yaml, the role's REPLICATION attribute, and "
        "pg_hba.conf",
    )


def _one_line(message: str) -> str:
    return " ".join(message.split())


@contextmanager
def mapped_errors(doing: str) -> Iterator[None]:
    """Turn psycopg's errors inside the block into ours.

    Raises:
        CdcError: As ``server_error`` and ``connect_failed`` map them.
    """
    try:
        yield
    except psycopg.Error as error:
        diagnosed = error.diag.message_primary
        if diagnosed is not None:
            raise server_error(error.sqlstate, diagnosed, doing) from None
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise connection_lost(_one_line(str(error))) from None
        raise SourceError("source_error", f"cannot {doing}: {_one_line(str(error))}") from None
