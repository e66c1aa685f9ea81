"""The source's side of ``cdc verify``: its tables as of one exact position.

A temporary slot gives the position together with a snapshot: exactly the transactions whose
commit record starts below it. One read-only transaction takes the snapshot over, and the slot is
gone before anything is read. A table is locked (ACCESS SHARE) only while it is read.

What a snapshot does not keep is what a table is called, what its columns are, and its rows when
it is truncated or rewritten. So the catalog as of the snapshot is compared with that of now,
under the lock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import pq

from cdc.codecs import delta_type
from cdc.errors import EnvironmentProblem, SourceError
from cdc.names import quote_ident, quote_literal
from cdc.schema import Column, TableSchema
from cdc.verify.forms import compared, digest, range_of
from cdc.verify.sides import Key, Row, Sum
from connectors.postgres.client import ReplicationClient, connect_sql
from connectors.postgres.failures import mapped_errors
from connectors.postgres.load_catalog import flush_wal, holders
from connectors.postgres.publication import quote_table
from connectors.postgres.verify_sql import range_number, row_digest, row_number, value_text

Connection = psycopg.Connection[tuple[Any, ...]]

_BATCH: Final = 10_000
_TRANSACTION_TIMEOUT_VERSION: Final = 170_000

_RELATION = """
    SELECT n.nspname::text, c.relname::text, c.relkind::text,
           (SELECT coalesce(jsonb_object_agg(a.attname, jsonb_build_array(
                       a.attnum, a.atttypid::bigint, a.atttypmod,
                       format_type(a.atttypid, a.atttypmod), to_jsonb(a) ->> 'attgenerated')), '{}')
            FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = %s::oid
"""
_FILES = """
    WITH RECURSIVE part AS (
        SELECT %s::oid AS oid
        UNION ALL
        SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid WHERE %s
    )
    SELECT c.oid::bigint, c.relfilenode::bigint FROM part JOIN pg_class c USING (oid)
    WHERE c.relkind <> 'p' ORDER BY 1
"""
# These look the catalog up as it is now, whatever the snapshot.
_NOW = "SELECT to_regclass(%s)::oid::bigint"
_FILES_NOW = "SELECT %s::bigint, pg_relation_filenode(%s::oid)::bigint"
_LEAVES_NOW = """
    SELECT relid::oid::bigint, pg_relation_filenode(relid)::bigint
    FROM pg_partition_tree(%s::oid::regclass) WHERE isleaf ORDER BY 1
"""


@contextmanager
def open_snapshot(conninfo: Mapping[str, Any], wait_s: float) -> Iterator[PostgresSnapshot]:
    """Take the snapshot of a source, and hold it inside the block.

    Args:
        conninfo: libpq keywords of the source.
        wait_s: How long to wait for the transactions that are open now, seconds.

    Raises:
        EnvironmentProblem: ``transactions_open``, ``no_free_slot``, ``no_permission``, …
    """
    with connect_sql(conninfo) as nudging, connect_sql(conninfo) as connection:

        def waiting(seconds: float) -> None:
            if seconds > wait_s:
                raise EnvironmentProblem(
                    "transactions_open",
                    f"after {seconds:.0f} s there is no snapshot yet: the server waits for the end "
                    f"of transactions ({', '.join(holders(nudging)) or 'none is open any more'})",
                    remedy="end them (pg_terminate_backend, ROLLBACK PREPARED), or give --wait "
                    "more seconds",
                )

        with ReplicationClient(conninfo) as client:
            identity = client.identify_system()
            name = f"cdc_verify_{secrets.token_hex(8)}"
            created = client.create_slot(name, True, temporary=True, on_wait=waiting)
            _begin(connection, created.snapshot or "")
        try:
            yield PostgresSnapshot(connection, nudging, created.consistent_point, identity.sysid)
        finally:
            # Also while it still answers another thread.
            connection.close()


def _begin(connection: Connection, snapshot: str) -> None:
    """Begin the transaction that all tables are read in."""
    begin = (
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
        f" SET TRANSACTION SNAPSHOT {quote_literal(snapshot)};"
        # A policy that would hide rows makes the query fail.
        " SET LOCAL row_security = off;"
        # Sums need no compiler; it would take a second of each table.
        " SET LOCAL jit = off;"
    )
    if connection.info.server_version >= _TRANSACTION_TIMEOUT_VERSION:
        begin += " SET LOCAL transaction_timeout = 0;"
    with mapped_errors("take the snapshot over"):
        connection.execute(begin.encode())


class PostgresSnapshot:
    """As ``cdc.verify.sides.SourceSnapshot``.

    Args:
        connection: In the transaction that has the snapshot.
        nudging: Another connection.
        consistent_point: Of the snapshot.
        sysid: Of the server.
    """

    def __init__(
        self, connection: Connection, nudging: Connection, consistent_point: int, sysid: str
    ) -> None:
        self._connection = connection
        self._nudging = nudging
        self.consistent_point = consistent_point
        self.sysid = sysid

    def nudge(self) -> None:
        """As ``SourceSnapshot.nudge``."""
        flush_wal(self._nudging)

    @contextmanager
    def table(self, schema: TableSchema) -> Iterator[PostgresTable]:
        """As ``SourceSnapshot.table``."""
        connection = self._connection
        with mapped_errors("begin with a table"):
            connection.execute("SAVEPOINT one_table")
        try:
            columns = _columns_then(connection, schema)
            _lock(connection, schema)
            _check_files(connection, schema)
            _check_columns(connection, schema, columns)
            yield PostgresTable(connection, schema, _notes(schema, columns))
        finally:
            # This ends the lock, too, and whatever failed. A connection that is gone said so.
            if connection.info.transaction_status != pq.TransactionStatus.UNKNOWN:
                with mapped_errors("end with a table"):
                    connection.execute("ROLLBACK TO SAVEPOINT one_table")


class PostgresTable:
    """As ``cdc.verify.sides.SourceTable``; its table is locked.

    Args:
        connection: In the snapshot's transaction.
        schema: The columns to compare.
        notes: For people.
    """

    def __init__(self, connection: Connection, schema: TableSchema, notes: tuple[str, ...]) -> None:
        self.notes = notes
        self._connection = connection
        self._schema = schema = compared(schema)
        self._encoding = connection.info.parameter_status("server_encoding") or ""
        self._range = range_number(schema, self._encoding)
        self._key = [schema.column(name) for name in schema.key]
        published = "true" if schema.row_filter is None else f"({schema.row_filter})"
        self._from = f"FROM {_relation(schema)} WHERE {published}"

    def sums(self) -> dict[int, Sum]:
        """As ``Side.sums``."""
        number = row_number(self._schema.columns, self._encoding)
        query = f"SELECT {self._range}, count(*), sum({number}) {self._from} GROUP BY 1"
        with mapped_errors("read the table"):
            found = self._connection.execute(query.encode()).fetchall()
        return {part: Sum(rows, int(total)) for part, rows, total in found}

    def rows(self, ranges: Sequence[int]) -> Iterator[list[tuple[str | None, ...]]]:
        """As ``SourceTable.rows``."""
        values = [*map(value_text, self._key), row_digest(self._schema.columns, self._encoding)]
        query = f"SELECT {', '.join(values)} {self._from} AND {self._in(ranges)}"
        with mapped_errors("read the table"), self._connection.cursor("cdc_verify") as cursor:
            cursor.execute(query.encode())
            while batch := cursor.fetchmany(_BATCH):
                yield batch

    def values(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """As ``Side.values``."""
        schema, width = self._schema, len(self._key)
        values = ", ".join(map(value_text, (*self._key, *schema.columns)))
        ranges = sorted({range_of(schema, key) for key in keys})
        digests = ", ".join(quote_literal(digest(key)) for key in keys)
        query = (
            f"SELECT {values} {self._from} AND {self._in(ranges)}"
            f" AND {row_digest(self._key, self._encoding)} IN ({digests})"
        )
        with mapped_errors("read the table"):
            found = self._connection.execute(query.encode()).fetchall()
        return {row[:width]: row[width:] for row in found}

    def cancel(self) -> None:
        """As ``SourceTable.cancel``."""
        with suppress(psycopg.Error):  # then there is nothing to cancel
            self._connection.cancel_safe()

    def _in(self, ranges: Sequence[int]) -> str:
        return f"{self._range} IN ({', '.join(map(str, ranges))})"


#: Name to attnum, type's OID, typmod, type as text, and whether it is generated.
_Columns = dict[str, list[Any]]


def _relation(schema: TableSchema) -> str:
    """The table without those that inherit from it, but with its partitions."""
    return quote_table(schema.id) if schema.partitioned else f"ONLY {quote_table(schema.id)}"


def _columns_then(connection: Connection, schema: TableSchema) -> _Columns:
    """The table's columns as of the snapshot, in which it must be what the log says."""
    with mapped_errors("look at the table"):
        found = connection.execute(_RELATION, (schema.relid,)).fetchone()
    if found is None:
        raise _altered(schema, "it was dropped before the position that is compared")
    namespace, name, kind, columns = found
    if (namespace, name) != schema.id:
        raise _altered(schema, f"it is called {namespace}.{name} at the source")
    if kind != ("p" if schema.partitioned else "r"):
        raise _altered(schema, "it is another kind of table")
    for column in schema.columns:
        there = columns.get(column.name)
        if there is None:
            raise _altered(schema, f"column {column.name} is gone at the source")
        if not _same_type(column, there[1], there[2]):
            raise _altered(
                schema, f"column {column.name} is {there[3]} at the source, and was {column.type}"
            )
    return dict(columns)


def _same_type(column: Column, type_oid: int, typmod: int) -> bool:
    """Whether a column's values are still printed and stored alike."""
    if (column.type_oid, column.typmod) == (type_oid, typmod):
        return True
    # A longer varchar, a timestamp of another precision: the text of the rows does not change.
    changed = Column(column.id, column.name, type_oid, typmod, column.type, False)
    return (
        column.wire is None
        and column.type_oid == type_oid
        and delta_type(changed) == delta_type(column)
    )


def _lock(connection: Connection, schema: TableSchema) -> None:
    lock = f"LOCK TABLE {_relation(schema)} IN ACCESS SHARE MODE"
    with mapped_errors("lock the table"):
        try:
            connection.execute(lock.encode())
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise _altered(schema, "it was dropped or renamed meanwhile") from None
        except psycopg.errors.LockNotAvailable:
            raise SourceError(
                "lock_not_granted",
                "somebody holds a lock on the table that keeps it from being read",
                table=str(schema.id),
                remedy="wait until the change of the table is done, then verify again",
            ) from None


def _check_files(connection: Connection, schema: TableSchema) -> None:
    """The table that is locked holds, in the same files, the rows that the snapshot sees."""
    relid = schema.relid
    with mapped_errors("look at the table"):
        (named,) = connection.execute(_NOW, (quote_table(schema.id),)).fetchall()
        then = connection.execute(_FILES, (relid, schema.partitioned)).fetchall()
        if schema.partitioned:
            now = connection.execute(_LEAVES_NOW, (relid,)).fetchall()
        else:
            now = connection.execute(_FILES_NOW, (relid, relid)).fetchall()
    if named[0] != relid:
        raise _altered(schema, "another table has its name meanwhile")
    if now != then:
        # The rows of then are gone, or are elsewhere, for every older snapshot.
        raise _altered(schema, "it was truncated or rewritten meanwhile, or its partitions changed")


def _check_columns(connection: Connection, schema: TableSchema, then: _Columns) -> None:
    """What the columns are called now, and stays so while the table is locked, is as it was."""
    names = ", ".join(quote_ident(column.name) for column in schema.columns)
    query = f"SELECT {names} FROM {_relation(schema)} LIMIT 0"  # noqa: S608
    result = connection.pgconn.exec_(query.encode())
    if result.status != pq.ExecStatus.TUPLES_OK:
        with mapped_errors("look at the table's columns"):
            error = psycopg.errors.error_from_result(result)
            if isinstance(error, psycopg.errors.UndefinedColumn):
                raise _altered(schema, "a column was dropped or renamed meanwhile")
            raise error
    for i, column in enumerate(schema.columns):
        if result.ftablecol(i) != then[column.name][0]:
            raise _altered(schema, f"column {column.name} was dropped or renamed meanwhile")


def _notes(schema: TableSchema, then: _Columns) -> tuple[str, ...]:
    known = set(schema.column_names)
    new = sorted(name for name, column in then.items() if name not in known and not column[4])
    generated = sorted(name for name, column in then.items() if name not in known and column[4])
    notes = []
    if new:
        notes.append(
            f"not compared: {', '.join(new)}: not published, or added since a row was last changed"
        )
    if generated:
        notes.append(f"not compared: {', '.join(generated)}: generated, so not replicated")
    return tuple(notes)


def _altered(schema: TableSchema, what: str) -> SourceError:
    return SourceError(
        "table_altered",
        f"the table cannot be compared: {what}",
        table=str(schema.id),
        remedy="cdc status shows what becomes of it; once it is Ready, verify again",
    )
