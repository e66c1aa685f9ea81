"""Re-reads values that the stream did not carry, over a plain connection.

A commit can be decoded before it is visible, so a row that is not found counts as gone only if
the event's transaction was visible in that very statement; otherwise we wait and read again. A
value that was read may be newer than the event: who uses it must say so (``unchanged``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import structlog

from cdc.names import quote_ident
from cdc.schema import TableSchema
from connectors.postgres.drift import SchemaDrift
from connectors.postgres.failures import mapped_errors

log = structlog.get_logger(__name__)

_FIRST_DELAY_S = 0.005
_LONGEST_DELAY_S = 0.5
_WARN_EVERY_S = 10.0
#: Every table of the source waits with the one that somebody holds a lock on.
_LONGEST_LOCKED_S = 60.0
_HALF_XID_SPACE = 1 << 31

# Types of extensions have operators of their own, in whatever schema the extension is; the others
# (also enums and arrays, which have no operator class by themselves) have the server's.
_EQUALITY = """coalesce(
    (SELECT s.nspname FROM pg_opclass d
     JOIN pg_am m ON m.oid = d.opcmethod AND m.amname = 'btree'
     JOIN pg_amop e ON e.amopfamily = d.opcfamily AND e.amoplefttype = d.opcintype
                   AND e.amoprighttype = d.opcintype AND e.amopstrategy = 3
     JOIN pg_operator o ON o.oid = e.amopopr
     JOIN pg_namespace s ON s.oid = o.oprnamespace
     WHERE d.opcdefault AND d.opcintype IN (a.atttypid, t.typbasetype) LIMIT 1), 'pg_catalog')"""

Connection = psycopg.Connection[tuple[Any, ...]]
#: Key values as Postgres' text, in the order of the key.
Key = tuple[str, ...]
#: Column index to its value, for the columns that still exist as they were.
Values = dict[int, bytes | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """One row to re-read.

    Args:
        key: Its key after the event.
        xid: The event's transaction, 32 bits as on the wire.
    """

    key: Key
    xid: int


class _TryAgain(Exception):
    """A statement took too long, or the table was renamed under us."""


class _Locked(_TryAgain):
    """Somebody holds a lock on the table."""


class Rereader:
    """Reads rows by relation id and key.

    Args:
        connect: Gives the connection to use, as from ``side_connection``.
        waiting: Called every few seconds while we wait; may raise to give up.
    """

    def __init__(self, connect: Callable[[], Connection], waiting: Callable[[], None]) -> None:
        self._connect = connect
        self._waiting = waiting

    def read(
        self, schema: TableSchema, columns: Sequence[int], wanted: Sequence[Wanted]
    ) -> list[Values | None]:
        """The columns of each wanted row; {} for a row (or table) that is gone.

        Waits for the first one. The others are read on the way, to spare queries: None for
        those whose transaction is not visible yet.

        Args:
            schema: The schema of the events.
            columns: Indexes of the columns.
            wanted: The rows.

        Raises:
            CdcError: As ``failures.server_error``; ``connection_lost``.
            SchemaDrift: ``table_locked``: for so long that the others should not wait for it.
        """
        delay, started, warned = _FIRST_DELAY_S, time.monotonic(), 0.0
        while True:
            locked = False
            try:
                answers = self._attempt(schema, columns, wanted)
            except _TryAgain as why:
                answers, locked = [None], isinstance(why, _Locked)
            if answers[0] is not None:
                return answers
            waited = time.monotonic() - started
            if locked and waited > _LONGEST_LOCKED_S:
                raise SchemaDrift(
                    "table_locked",
                    "values that the stream left out have to be read, and somebody holds a lock "
                    f"on the table since {waited:.0f} s",
                )
            if waited - warned > _WARN_EVERY_S:
                warned = waited
                log.warning("waiting for a row to be readable", table=str(schema.id))
            self._waiting()
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY_S)

    # --- inside ---

    def _attempt(
        self, schema: TableSchema, columns: Sequence[int], wanted: Sequence[Wanted]
    ) -> list[Values | None]:
        """One statement's answers: None where the event is not visible yet."""
        connection = self._connect()
        with mapped_errors("re-read rows"):
            try:
                with connection.transaction():
                    return self._select(connection, schema, columns, wanted)
            except psycopg.errors.LockNotAvailable:
                raise _Locked from None
            except (
                psycopg.errors.QueryCanceled,
                psycopg.errors.DeadlockDetected,
                psycopg.errors.UndefinedTable,
                psycopg.errors.UndefinedColumn,
                psycopg.errors.InvalidSchemaName,
            ):
                raise _TryAgain from None

    def _select(
        self,
        connection: Connection,
        schema: TableSchema,
        columns: Sequence[int],
        wanted: Sequence[Wanted],
    ) -> list[Values | None]:
        row = connection.execute(
            "SELECT n.nspname::text, c.relname::text FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s::oid",
            (schema.relid,),
        ).fetchone()
        if row is None:
            return [{} for _ in wanted]
        table = f"{quote_ident(row[0])}.{quote_ident(row[1])}"
        # From the lock on the name stays; it may have changed hands just before.
        connection.execute(f"LOCK TABLE ONLY {table} IN ACCESS SHARE MODE".encode())
        names = [schema.columns[i].name for i in columns]
        current = connection.execute(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,"  # noqa: S608
            " (SELECT jsonb_object_agg(attname,"
            f"   jsonb_build_array(atttypid::bigint, format_type(atttypid, -1), {_EQUALITY}))"
            "  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
            "  WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s::oid AND n.nspname = %s::text AND c.relname = %s::text",
            (schema.relid, row[0], row[1]),
        ).fetchone()
        if current is None:
            raise _TryAgain
        next_xid, types = int(current[0]), dict(current[1] or {})
        as_before = {c.name for c in schema.columns if types.get(c.name, (None,))[0] == c.type_oid}
        if not as_before.issuperset(schema.key):
            return [{} for _ in wanted]
        readable = [(i, name) for i, name in zip(columns, names, strict=True) if name in as_before]
        key = [(name, types[name][1], types[name][2]) for name in schema.key]
        # A partitioned table's rows are those of its partitions; children by INHERITS are others.
        rows_of = table if schema.partitioned else f"ONLY {table}"
        query = _query(rows_of, key, [n for _, n in readable])
        keys = list(zip(*(w.key for w in wanted), strict=True))
        parameters: list[Any] = [
            [str(extend_xid(w.xid, next_xid)) for w in wanted],
            *(list(values) for values in keys),
        ]
        cursor = connection.execute(query, parameters)
        result = cursor.pgresult
        if result is None:
            raise _TryAgain
        answers: list[Values | None] = [None] * len(wanted)
        for r in range(result.ntuples):
            place = int(result.get_value(r, 0) or b"0") - 1
            visible = result.get_value(r, 1) == b"t"
            there = result.get_value(r, 2) == b"t"
            if not visible:
                continue
            answers[place] = (
                {i: result.get_value(r, 3 + c) for c, (i, _) in enumerate(readable)}
                if there
                else {}
            )
        return answers


def extend_xid(xid: int, next_xid: int) -> int:
    """The 64-bit id of a recent transaction.

    Args:
        xid: Its low 32 bits.
        next_xid: A 64-bit id from about the same time, in either direction.
    """
    full = (next_xid & ~0xFFFF_FFFF) | xid
    if full - next_xid >= _HALF_XID_SPACE:
        full -= 1 << 32
    elif next_xid - full > _HALF_XID_SPACE:
        full += 1 << 32
    return full


def _query(table: str, key: Sequence[tuple[str, str, str]], names: Sequence[str]) -> bytes:
    """One statement, so one snapshot, for visibility and rows alike.

    Args:
        table: Its quoted name, with ONLY where its children's rows are not its own.
        key: Name and type of each key column, and the schema of its equality operator.
        names: Columns to read.
    """
    keys = ", ".join(f"k{i}" for i in range(len(key)))
    arrays = ", ".join(["%s::text[]"] * (1 + len(key)))
    # psycopg looks for placeholders everywhere, also in names.
    inner = "".join(f", t.{quote_ident(name)} AS c{i}" for i, name in enumerate(names))
    outer = "".join(f", r.c{i}" for i in range(len(names)))
    # Each key value's text is read by its own column's type, so that indexes are used.
    conditions = " AND ".join(
        f"t.{quote_ident(name)} OPERATOR({quote_ident(schema)}.=) CAST(w.k{i} AS {type_name})"
        for i, (name, type_name, schema) in enumerate(key)
    )
    rows = f"SELECT true AS there{inner} FROM {table} t WHERE {conditions}"  # noqa: S608
    return (
        "SELECT w.place, pg_visible_in_snapshot(CAST(w.xid AS xid8), pg_current_snapshot()),"  # noqa: S608
        f" r.there{outer} FROM unnest({arrays}) WITH ORDINALITY AS w(xid, {keys}, place)"
        f" LEFT JOIN LATERAL ({rows.replace('%', '%%')}) r ON true"
    ).encode()
