"""The source as a load sees it: one short transaction for each chunk, checks, and COPY.

A chunk's rows are those of its transaction's snapshot, but names and files are those of now: a
rewrite between two chunks moves rows, a swap of two columns' names would swap their values. So
the table is locked first (ACCESS SHARE), before the snapshot is taken, and compared with what
the load began with. A rewrite that came before is then both visible and noticed; a later one
waits for the chunk.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import pq, sql

from cdc.load import ChunkPlan, LoadTask, Piece
from cdc.schema import TableSchema
from cdc.session_settings import CLIENT_ENCODING, OPTIONS
from cdc.source_sql import RELATION_FILE
from snapshots.failures import CONNECTING, mapped_errors, table_changed

Connection = psycopg.Connection[tuple[Any, ...]]

#: Rows and bytes after which a batch of COPY is handed on. All values of a usual batch fit into a
#: core's cache: with twice as many rows each takes longer.
BATCH_ROWS = 400
BATCH_BYTES = 1024 * 1024
#: A batch that does not get full is handed on after this long, seconds.
PATIENCE = 2.0
#: How long a chunk waits for the lock of its table, seconds. Whoever waits for a stronger lock
#: behind it waits as long.
LOCK_SECONDS = 10

# A result's description shows a domain's base type instead of the domain.
_FORM = f"""
    SELECT c.oid::bigint, {RELATION_FILE.format(c="c")},
           (SELECT jsonb_object_agg(attname, jsonb_build_array(attnum, atttypid::bigint, atttypmod))
            FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
    FROM pg_class c WHERE c.oid = to_regclass(%s)
""".encode()  # noqa: S608  (put together from constants)
#: Whether a leaf ``c`` of a schema ``n`` can be read by itself with the same result as through its
#: root: reading that asks for no permission on the leaf, and knows no policies of it.
READABLE = (
    "c.relkind = 'r' AND has_schema_privilege(n.oid, 'USAGE')"
    " AND has_table_privilege(c.oid, 'SELECT') AND NOT row_security_active(c.oid)"
)
_NAMES = f"""
    SELECT c.oid::bigint, n.nspname::text, c.relname::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = ANY (%s::oid[]) AND {READABLE}
""".encode()  # noqa: S608  (put together from constants)

_BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    # A policy that would hide rows makes the query fail.
    " SET LOCAL row_security = off;"
    f" SET LOCAL lock_timeout = '{LOCK_SECONDS}s';"
    " SET LOCAL statement_timeout = 0;"
    " SET LOCAL idle_in_transaction_session_timeout = 0;"
)
_NO_TRANSACTION_TIMEOUT = " SET LOCAL transaction_timeout = 0;"
_TRANSACTION_TIMEOUT_VERSION = 170_000


def open_session(conninfo: Mapping[str, Any], name: str) -> Connection:
    """A session with the settings that the stream has, outside of any transaction.

    Args:
        conninfo: libpq keywords of the source.
        name: Shown in pg_stat_activity.

    Raises:
        CdcError: No connection.
    """
    keywords = {
        "connect_timeout": 20,
        # A server that vanished is noticed within a minute.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        **conninfo,
        "options": OPTIONS,
        "client_encoding": CLIENT_ENCODING,
        "application_name": name,
    }
    with mapped_errors(CONNECTING):
        return psycopg.connect(**keywords, autocommit=True)


def begin_chunk(connection: Connection, task: LoadTask) -> None:
    """Begin a chunk's transaction: lock the table, then compare it with its load's beginning.

    Raises:
        CdcError: SourceError ``lock_not_granted`` (see ``lock_holders``; the transaction is
            over), ``table_rewritten``, ``table_changed``, SourceRefused ``no_permission``, ….
    """
    lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(_rows_of(task.schema))
    begin = _BEGIN
    if connection.info.server_version >= _TRANSACTION_TIMEOUT_VERSION:
        begin += _NO_TRANSACTION_TIMEOUT
    with mapped_errors("lock the table", task.schema):
        # One message. None of these takes the snapshot; the lock is held when it is taken.
        connection.execute((begin + lock.as_string(connection)).encode())
    check_table(connection, task)


def snapshot_of(connection: Connection) -> str:
    """The snapshot of a chunk's transaction: xmin, xmax and what was open, 64-bit ids."""
    with mapped_errors("read the snapshot"):
        ((text,),) = connection.execute("SELECT pg_current_snapshot()::text").fetchall()
    return str(text)


def end_chunk(connection: Connection) -> None:
    """End a chunk's transaction, whatever its state.

    Raises:
        SourceError: ``connection_lost``, ``server_stopping``.
    """
    with mapped_errors("end the transaction"):
        connection.execute("ROLLBACK")


def lock_holders(connection: Connection, task: LoadTask) -> tuple[str, ...]:
    """Who holds, or waits for, a lock of a table or its leaves that a chunk cannot get past.

    Returns:
        Such as "pid 4711", or "a prepared transaction"; those that hold it first.
    """
    relids = [task.schema.relid, *(leaf for piece in task.plan.pieces for leaf in piece.leaves)]
    with mapped_errors("look for locks"):
        found = connection.execute(
            "SELECT DISTINCT pid, granted FROM pg_locks WHERE locktype = 'relation'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND relation = ANY (%s::oid[]) AND mode = 'AccessExclusiveLock'"
            " ORDER BY granted DESC, pid",
            (relids,),
        ).fetchall()
    return tuple("a prepared transaction" if pid is None else f"pid {pid}" for pid, _ in found)


def check_table(connection: Connection, task: LoadTask) -> None:
    """Compare a locked table with what its load began with.

    Raises:
        SourceError: ``table_rewritten``: another table has its name, it was truncated or
            rewritten; ``table_changed``: the columns are not those of the schema.
        SourceRefused: ``row_security``, ``no_permission``.
    """
    schema = task.schema
    with mapped_errors("look at the table", schema):
        found = connection.execute(_FORM, (_name(schema).as_string(connection),)).fetchone()
        if found is None or found[:2] != (schema.relid, task.filenode):
            raise table_changed("table_rewritten", schema, "it was rewritten or replaced")
        statement = (
            sql.SQL("{} LIMIT 0").format(_select(schema, _rows_of(schema))).as_bytes(connection)
        )
        result = connection.pgconn.exec_(statement)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
    types = found[2] or {}
    for i, column in enumerate(schema.columns):
        now = (result.ftable(i), *types.get(column.name, ()))
        if now != (schema.relid, column.id, column.type_oid, column.typmod):
            raise table_changed("table_changed", schema, f"column {column.name} was changed")


class ChunkCopy:
    """COPY of one chunk of a table.

    Args:
        connection: A session; nothing else may use it until the copy ends.
        schema: The columns to read, in their order.
        plan: How the table is cut.
        chunk: Which chunk.

    Attributes:
        rows: What the server says it sent; None until the copy is complete.
        batch_rows: Rows after which a batch is handed on.
    """

    def __init__(
        self, connection: Connection, schema: TableSchema, plan: ChunkPlan, chunk: int
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._piece, self._number = plan.find(chunk)
        self.rows: int | None = None
        self.batch_rows = BATCH_ROWS

    def blocks(self) -> Iterator[bytes]:
        """Whole lines of COPY's text format, as they come, some at a time.

        While the server finds nothing to send, the caller gets an empty block now and then, so
        that it can close what it holds open.

        Raises:
            CdcError: The connection or the server failed, or it refused the query.
        """
        with mapped_errors("copy", self._schema):
            server, statement = self._connection.pgconn, self._statement()
            if server.parameter_status(b"server_encoding") == b"SQL_ASCII":
                # Its bytes are of any encoding. Sent as they are, they are refused by us, who
                # know the column; the server would not say.
                server.exec_(b"SET LOCAL client_encoding TO 'SQL_ASCII'")
            result = server.exec_(statement)
            if result.status != pq.ExecStatus.COPY_OUT:
                raise psycopg.errors.error_from_result(result)
            yield from self._receive(server)
            result = server.get_result()  # type: ignore[assignment]
            if result is None or result.status != pq.ExecStatus.COMMAND_OK:
                raise (
                    psycopg.errors.error_from_result(result)
                    if result is not None
                    else psycopg.OperationalError("no result after COPY")
                )
            while server.get_result() is not None:
                pass
            self.rows = result.command_tuples

    def _statement(self) -> bytes:
        where = _where(self._schema, self._piece, self._number)
        parts = [_select(self._schema, rows) + where for rows in self._relations()]
        query = sql.SQL(" UNION ALL ").join(parts)
        return sql.SQL("COPY ({}) TO STDOUT").format(query).as_bytes(self._connection)

    def _relations(self) -> list[sql.Composable]:
        """What to read the chunk from; names of leaves are those of now, which are locked."""
        schema, leaves = self._schema, self._piece.leaves
        if not leaves:
            return [_rows_of(schema)]
        found = self._connection.execute(_NAMES, (list(leaves),)).fetchall()
        names = {relid: sql.Identifier(*name) for relid, *name in found}
        if len(names) < len(leaves):
            # The next load reads it through the table.
            raise table_changed(
                "table_changed", schema, "a partition can no longer be read by its own name"
            )
        return [sql.SQL("ONLY {}").format(names[leaf]) for leaf in leaves]

    def _receive(self, server: pq.abc.PGconn) -> Iterator[bytes]:
        readable = select.poll()
        readable.register(server.socket, select.POLLIN)
        get = server.get_copy_data
        lines: list[bytes] = []
        take = lines.append
        size, since = 0, time.monotonic()
        while True:
            length, line = get(1)
            if length > 0:
                take(bytes(line))
                size += length
                if len(lines) < self.batch_rows and size < BATCH_BYTES:
                    continue
                # Of a large value even one copy too many counts.
                del line
            elif length == 0:
                if readable.poll(PATIENCE * 1000):
                    server.consume_input()
                    if time.monotonic() - since < PATIENCE:
                        continue
            elif lines:
                yield _together(lines)
                return
            else:
                return
            yield _together(lines)
            size, since = 0, time.monotonic()


def _together(lines: list[bytes]) -> bytes:
    """One block of all lines, of which nothing else is kept then."""
    block = b"".join(lines)
    lines.clear()
    return block


def _name(schema: TableSchema) -> sql.Identifier:
    return sql.Identifier(schema.schema, schema.table)


def _select(schema: TableSchema, rows: sql.Composable) -> sql.Composed:
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in schema.column_names)
    return sql.SQL("SELECT {} FROM {}").format(columns, rows)


def _rows_of(schema: TableSchema) -> sql.Composable:
    """The table without those that inherit from it, but with its partitions."""
    name = _name(schema)
    return name if schema.partitioned else sql.SQL("ONLY {}").format(name)


def _where(schema: TableSchema, piece: Piece, chunk: int) -> sql.Composed:
    conditions: list[sql.Composable] = []
    if piece.count > 1:
        first, end = piece.blocks(chunk)
        conditions.append(sql.SQL("ctid >= {}::tid").format(sql.Literal(f"({first},0)")))
        if end is not None:
            conditions.append(sql.SQL("ctid < {}::tid").format(sql.Literal(f"({end},0)")))
    if schema.row_filter is not None:
        # As the server itself prints it, with names of columns that the schema has pinned.
        conditions.append(sql.SQL("({})").format(sql.SQL(schema.row_filter)))
    start = sql.SQL(" WHERE " if conditions else "")
    return start + sql.SQL(" AND ").join(conditions)
