"""The source as a load sees it: sessions on one exported snapshot, checks, and COPY.

Rows are visible as of the snapshot, but names and files are those of now: a TRUNCATE or a
rewrite after the snapshot would show an empty table, a swap of two columns' names would swap
their values. So tables are locked first (ACCESS SHARE) and compared with the plan afterwards.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import pq, sql

from cdc.errors import SourceRefused
from cdc.load import LoadTask
from cdc.schema import TableSchema
from cdc.session_settings import CLIENT_ENCODING, OPTIONS
from snapshots.failures import mapped_errors, table_changed
from snapshots.plan import BlockRange, TableSize

Connection = psycopg.Connection[tuple[Any, ...]]

#: Rows and bytes after which a batch of COPY is handed on.
BATCH_ROWS = 1000
BATCH_BYTES = 1024 * 1024
#: A batch that does not get full is handed on after this long, seconds.
PATIENCE = 2.0


def open_snapshot(conninfo: Mapping[str, Any], snapshot: str, name: str) -> Connection:
    """A session whose one transaction, read only, sees the exported snapshot.

    Args:
        conninfo: libpq keywords of the source.
        snapshot: Name of the exported snapshot.
        name: Shown in pg_stat_activity.

    Raises:
        CdcError: No connection, or SourceError ``snapshot_gone``.
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
    with mapped_errors("open the snapshot"):
        connection: Connection = psycopg.connect(**keywords, autocommit=True)
        try:
            if connection.info.server_version >= 170_000:
                connection.execute("SET transaction_timeout = 0")
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
            # A policy that would hide rows makes the query fail.
            connection.execute("SET LOCAL row_security = off")
        except BaseException:
            connection.close()
            raise
    return connection


def lock_tables(connection: Connection, tasks: Sequence[LoadTask]) -> None:
    """Keep the tables from being changed in form until the transaction ends.

    Raises:
        CdcError: SourceError ``table_rewritten`` (it is gone) or ``lock_not_granted``,
            SourceRefused ``no_permission``, ….
    """
    for task in tasks:
        with mapped_errors("lock the table", task.schema):
            connection.execute(
                sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(_name(task.schema))
            )


def check_table(connection: Connection, task: LoadTask) -> None:
    """Compare a locked table with the plan.

    Raises:
        SourceError: ``table_rewritten``: another table has its name, it was truncated or
            rewritten; ``table_changed``: the columns are not those of the schema.
        SourceRefused: ``row_security``, ``no_permission``.
    """
    schema = task.schema
    with mapped_errors("look at the table", schema):
        found = connection.execute(
            "SELECT t.relid::oid::bigint, pg_relation_filenode(t.relid)::bigint"
            " FROM (SELECT to_regclass(%s) AS relid) t",
            (_name(schema).as_string(connection),),
        ).fetchone()
        if found != (schema.relid, task.filenode):
            raise table_changed("table_rewritten", schema, "it was rewritten or replaced")
        # Names are those of now, even in an old snapshot, so ask what they stand for.
        statement = sql.SQL("{} LIMIT 0").format(_select(schema)).as_bytes(connection)
        result = connection.pgconn.exec_(statement)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise psycopg.errors.error_from_result(result)
    for i, column in enumerate(schema.columns):
        now = (result.ftable(i), result.ftablecol(i), result.ftype(i), result.fmod(i))
        if now != (schema.relid, column.id, column.type_oid, column.typmod):
            raise table_changed("table_changed", schema, f"column {column.name} was changed")


def measure(
    connection: Connection, tasks: Sequence[LoadTask]
) -> tuple[list[TableSize], list[int | None]]:
    """Sizes of the tables, and the planner's guess of their rows (None: it has none)."""
    with mapped_errors("measure the tables"):
        found = connection.execute(
            "SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint,"
            " pg_table_size(c.oid), c.reltuples::float8, c.relpages::bigint"
            " FROM unnest(%s::oid[]) WITH ORDINALITY AS t(oid, n)"
            " JOIN pg_class c ON c.oid = t.oid ORDER BY t.n",
            ([task.schema.relid for task in tasks],),
        ).fetchall()
    if len(found) != len(tasks):
        raise SourceRefused("table_missing", "a table of the load is not in the catalog")
    sizes = [TableSize(i, row[0], row[1]) for i, row in enumerate(found)]
    return sizes, [_estimate(*row) for row in found]


class RangeCopy:
    """COPY of one range of a table.

    Args:
        connection: A session on the snapshot; nothing else may use it until the copy ends.
        schema: The columns to read, in their order.
        blocks: The range.

    Attributes:
        rows: What the server says it sent; None until the copy is complete.
    """

    def __init__(self, connection: Connection, schema: TableSchema, blocks: BlockRange) -> None:
        self._connection = connection
        self._schema = schema
        self._statement = sql.SQL("COPY ({}{}) TO STDOUT").format(_select(schema), _where(blocks))
        self.rows: int | None = None

    def blocks(self) -> Iterator[bytes]:
        """Whole lines of COPY's text format, as they come, some at a time.

        While the server finds nothing to send, the caller gets an empty block now and then, so
        that it can close what it holds open.

        Raises:
            CdcError: The connection or the server failed, or it refused the query.
        """
        with mapped_errors("copy", self._schema):
            server = self._connection.pgconn
            result = server.exec_(self._statement.as_bytes(self._connection))
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
                if len(lines) < BATCH_ROWS and size < BATCH_BYTES:
                    continue
            elif length == 0:
                if readable.poll(PATIENCE * 1000):
                    server.consume_input()
                    if time.monotonic() - since < PATIENCE:
                        continue
            elif lines:
                yield b"".join(lines)
                return
            else:
                return
            yield b"".join(lines)
            lines.clear()
            size, since = 0, time.monotonic()


def _name(schema: TableSchema) -> sql.Identifier:
    return sql.Identifier(schema.schema, schema.table)


def _select(schema: TableSchema) -> sql.Composed:
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in schema.column_names)
    return sql.SQL("SELECT {} FROM ONLY {}").format(columns, _name(schema))


def _where(blocks: BlockRange) -> sql.Composed:
    if blocks.whole:
        return sql.Composed([])
    condition = sql.SQL(" WHERE ctid >= {}::tid").format(sql.Literal(f"({blocks.first},0)"))
    if blocks.end is not None:
        condition += sql.SQL(" AND ctid < {}::tid").format(sql.Literal(f"({blocks.end},0)"))
    return condition


def _estimate(blocks: int, _bytes: int, reltuples: float, relpages: int) -> int | None:
    """As the planner does: the density of the last ANALYZE over the blocks of now."""
    if blocks == 0:
        return 0
    if reltuples < 0 or relpages == 0:
        return None
    return round(reltuples / relpages * blocks)
