"""What the start checks need to know of the server and our role in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from connectors.postgres.failures import mapped_errors


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server and our role in it.

    Args:
        version: server_version_num, 150012 for 15.12.
        database: The database's name.
        encoding: Its encoding.
        standby: It is in recovery.
        wal_level: minimal, replica or logical.
        max_slots: max_replication_slots.
        used_slots: Slots that exist, of all databases.
        max_senders: max_wal_senders.
        used_senders: Senders at work.
        role: Our role.
        superuser: It is one.
        replication: It has the REPLICATION attribute (or is a superuser).
        may_create: It may CREATE in the database (needed for a publication).
    """

    version: int
    database: str
    encoding: str
    standby: bool
    wal_level: str
    max_slots: int
    used_slots: int
    max_senders: int
    used_senders: int
    role: str
    superuser: bool
    replication: bool
    may_create: bool


_SERVER = """
    SELECT current_setting('server_version_num')::int,
           current_database()::text,
           current_setting('server_encoding'),
           pg_is_in_recovery(),
           current_setting('wal_level'),
           current_setting('max_replication_slots')::int,
           (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int,
           current_setting('max_wal_senders')::int,
           (SELECT count(*) FROM pg_catalog.pg_stat_replication)::int,
           r.rolname::text, r.rolsuper, r.rolreplication OR r.rolsuper,
           has_database_privilege(current_database(), 'CREATE')
    FROM pg_catalog.pg_roles r
    WHERE r.rolname = current_user
"""


def server_info(connection: psycopg.Connection[Any]) -> ServerInfo:
    """Read what the start checks need of the server.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    with mapped_errors("read the server's settings"):
        row = connection.execute(_SERVER).fetchone()
    if row is None:  # current_user always has a row
        raise RuntimeError("pg_roles has no row for current_user")
    return ServerInfo(*row)
