"""What the server knows of a replication slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.position import parse_lsn
from connectors.postgres.failures import mapped_errors


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """A row of pg_replication_slots, LSNs as integers.

    Args:
        name: The slot.
        plugin: ``pgoutput`` for ours; None for a physical slot.
        database: None for a physical slot.
        active_pid: The server process that streams from it, if any.
        wal_status: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
        invalidation_reason: Why it is unusable (server version 17 on), else None.
        restart_lsn: From where the server keeps WAL; None once lost.
        confirmed_flush: Up to where we confirmed; None for a physical slot.
        safe_wal_size: Bytes of WAL that may be written before it is lost; None for no limit.
        two_phase: Prepared transactions are decoded at PREPARE; ours never are.
        temporary: Dropped with its connection.
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    wal_status: str | None
    invalidation_reason: str | None
    restart_lsn: int | None
    confirmed_flush: int | None
    safe_wal_size: int | None
    two_phase: bool
    temporary: bool

    @property
    def active(self) -> bool:
        """Somebody streams from it now."""
        return self.active_pid is not None

    @property
    def lost(self) -> bool:
        """WAL that the slot needs is gone, or it was invalidated otherwise."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


def inspect_slot(connection: psycopg.Connection[Any], name: str) -> SlotInfo | None:
    """Read a slot; None if there is none of that name.

    Args:
        connection: As from ``client.connect_sql``.
        name: The slot's name.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    # Columns that newer servers add are read through JSON, so that one query serves all.
    query = """
        SELECT s.slot_name::text, s.plugin::text, s.database::text, s.active_pid, s.wal_status,
               to_jsonb(s) ->> 'invalidation_reason', s.restart_lsn::text,
               s.confirmed_flush_lsn::text, s.safe_wal_size, s.two_phase, s.temporary
        FROM pg_catalog.pg_replication_slots s
        WHERE s.slot_name = %s::text
    """
    with mapped_errors("read the replication slots"):
        row = connection.execute(query, (name,)).fetchone()
    if row is None:
        return None
    return SlotInfo(
        name=row[0],
        plugin=row[1],
        database=row[2],
        active_pid=row[3],
        wal_status=row[4],
        invalidation_reason=row[5],
        restart_lsn=None if row[6] is None else parse_lsn(row[6]),
        confirmed_flush=None if row[7] is None else parse_lsn(row[7]),
        safe_wal_size=row[8],
        two_phase=row[9],
        temporary=row[10],
    )
