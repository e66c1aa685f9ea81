"""What the source's server says of our slot. A plain query: nothing is changed there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdc.errors import EnvironmentProblem
from cdc.redaction import redact

_CONNECT_S: Final = "5"
_OPTIONS: Final = "-c statement_timeout=5s -c default_transaction_read_only=on"
_SLOT: Final = """
    with now as (
        select case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                    else pg_current_wal_lsn() end as lsn
    )
    select now.lsn::text as wal_lsn, s.slot_name is not null as found, s.active,
           s.wal_status, s.confirmed_flush_lsn::text as confirmed_flush_lsn,
           s.restart_lsn::text as restart_lsn,
           pg_wal_lsn_diff(now.lsn, s.confirmed_flush_lsn)::bigint as lag_bytes,
           pg_wal_lsn_diff(now.lsn, s.restart_lsn)::bigint as retained_bytes
    from now left join pg_replication_slots s
      on s.slot_name = %s and s.database = current_database()
"""


def slot_status(conninfo: Mapping[str, str], slot: str) -> dict[str, Any]:
    """The slot's state.

    Args:
        conninfo: Keywords for psycopg.
        slot: Its name.

    Returns:
        ``name, found, active, wal_status, wal_lsn, confirmed_flush_lsn, restart_lsn,
        lag_bytes`` (WAL that is not confirmed) and ``retained_bytes`` (WAL kept for the slot).

    Raises:
        EnvironmentProblem: ``source_unreachable``.
    """
    import psycopg
    from psycopg.rows import dict_row

    settings = {**conninfo, "connect_timeout": _CONNECT_S, "options": _OPTIONS}
    try:
        with psycopg.connect(
            **settings,  # type: ignore[arg-type]
            autocommit=True,
            row_factory=dict_row,
        ) as connection:
            row = connection.execute(_SLOT, [slot]).fetchone()
    except psycopg.Error as problem:
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        raise EnvironmentProblem(
            "source_unreachable",
            f"Postgres does not answer: {redact(lines[0])}",
            remedy="is the server up, and are host, port, user and password right?",
        ) from None
    return {"name": slot, **(row or {})}
