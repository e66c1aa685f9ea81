"""Databases of a server: created for a demo or a test, and dropped with their slots."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg import sql

_WAIT_SECONDS = 10


def create_database(superuser: dict[str, Any], name: str, options: str = "") -> None:
    """Create a database.

    Args:
        superuser: Keywords for ``psycopg.connect``.
        name: Its name, unquoted.
        options: The rest of CREATE DATABASE: ``encoding 'latin1' template template0``.
    """
    statement = sql.SQL("create database {} ").format(sql.Identifier(name)).as_string() + options
    with psycopg.connect(**superuser, autocommit=True) as connection:
        connection.execute(statement.encode())


def drop_database(superuser: dict[str, Any], name: str) -> None:
    """Drop a database, its connections and its replication slots."""
    with psycopg.connect(**superuser, autocommit=True) as connection:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots"
                " where database = %s and active_pid is not null",
                [name],
            )
            try:
                connection.execute(
                    "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                    " where database = %s",
                    [name],
                )
                break
            except psycopg.errors.ObjectInUse:
                # A walsender takes a moment to end.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
        connection.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )
