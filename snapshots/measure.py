"""How large tables are and how they are cut, from the catalog alone: nothing of them is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psycopg import sql

from cdc.errors import CdcError, SourceRefused
from cdc.load import ChunkPlan, Measure
from cdc.schema import TableSchema
from cdc.source_sql import PARTITION_TREE
from snapshots.failures import mapped_errors
from snapshots.plan import CHUNK_BYTES, Leaf, plan_chunks, plan_leaves
from snapshots.source import READABLE, Connection

# Of a table that was never analyzed.
_ROW_BYTES: Final = 100
# Blocks, and bytes with TOAST.
_SIZES: Final = sql.SQL(
    "coalesce(pg_relation_size(c.oid) / block.size, 0), coalesce(pg_table_size(c.oid), 0)"
)
_OLD_SIZES: Final = sql.SQL(
    "c.relpages::bigint, (c.relpages::bigint + coalesce(toast.relpages, 0)) * block.size"
)
_LEAVES: Final = f"""
    SELECT root.oid::bigint, c.oid::bigint, {READABLE}
    FROM unnest(%s::oid[]) AS root(oid)
    CROSS JOIN LATERAL {PARTITION_TREE.format(oid="root.oid")} member
    JOIN pg_class c ON c.oid = member.relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind <> 'p'
    ORDER BY 1, 2
""".encode()  # noqa: S608  (put together from constants)


class _Size(NamedTuple):
    """Of a relation, or of several together."""

    kind: str
    blocks: int
    total_bytes: int
    rows: float
    pages: int

    @property
    def estimate(self) -> int | None:
        """Rows, as the planner guesses: the density of the last ANALYZE over the blocks of now."""
        if self.blocks == 0:
            return 0
        if self.rows < 0 or self.pages == 0:
            return None
        return round(self.rows / self.pages * self.blocks)


def measure(
    connection: Connection,
    schemas: Sequence[TableSchema],
    chunk_bytes: int = CHUNK_BYTES,
    chunk_rows: float | None = None,
) -> list[Measure]:
    """Size up tables; no lock is waited for long.

    Args:
        connection: A session outside of any transaction.
        schemas: The tables.
        chunk_bytes: What a chunk should hold at the most.
        chunk_rows: Likewise in rows, as far as the planner can guess them.

    Raises:
        SourceRefused: ``table_missing``, ``not_a_table`` (a view, a foreign table, …), both
            naming it.
    """
    leaves = _leaves(connection, [schema.relid for schema in schemas if schema.partitioned])
    readable = {relid: ok for members in leaves.values() for relid, ok in members}
    sizes = _sizes(connection, [*(schema.relid for schema in schemas), *readable])
    version = connection.info.server_version
    measures = []
    for schema in schemas:
        size = _of_table(schema, sizes)
        members = leaves.get(schema.relid, [])
        there = [relid for relid, _ in members if relid in sizes]
        if schema.partitioned:
            size = _together(sizes[relid] for relid in there)
        limit = chunk_bytes
        rows = size.estimate
        if chunk_rows is not None and size.total_bytes:
            row_bytes = size.total_bytes / rows if rows else _ROW_BYTES
            limit = min(limit, max(1, round(chunk_rows * row_bytes)))
        if schema.counted:
            # In one transaction: see decision 5.
            plan = ChunkPlan.whole(max(size.blocks, 1), 1)
        elif not schema.partitioned:
            plan = plan_chunks(size.blocks, size.total_bytes, version, limit)
        elif there and all(ok for _, ok in members):
            found = [Leaf(relid, sizes[relid].blocks, sizes[relid].total_bytes) for relid in there]
            plan = plan_leaves(found, version, limit)
        else:
            # What we may not read by itself is read through the table.
            plan = ChunkPlan.whole(max(size.blocks, 1), 1)
        measures.append(Measure(plan, rows, size.total_bytes))
    return measures


def _leaves(connection: Connection, roots: list[int]) -> dict[int, list[tuple[int, bool]]]:
    """Leaves of partitioned tables, and whether each can be read by itself."""
    found = defaultdict(list)
    if roots:
        with mapped_errors("look at the partitions"):
            for root, relid, readable in connection.execute(_LEAVES, (roots,)).fetchall():
                found[root].append((relid, readable))
    return found


def _sizes(connection: Connection, relids: list[int]) -> dict[int, _Size]:
    """Sizes of the relations that are there."""
    try:
        connection.execute("SET lock_timeout = '1s'")
        found = _ask_sizes(connection, relids, _SIZES)
    except CdcError as error:
        if error.code != "lock_not_granted":
            raise
        # Asking a locked table for its size would wait; the last VACUUM's figures do not.
        found = _ask_sizes(connection, relids, _OLD_SIZES)
    return {relid: _Size(*size) for relid, *size in found}


def _ask_sizes(connection: Connection, relids: list[int], sizes: sql.SQL) -> list[tuple[Any, ...]]:
    statement = sql.SQL(
        "SELECT c.oid::bigint, c.relkind, {}, c.reltuples::float8, c.relpages::bigint"
        " FROM pg_class c LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid,"
        " (SELECT current_setting('block_size')::bigint AS size) block"
        " WHERE c.oid = ANY (%s::oid[])"
    ).format(sizes)
    with mapped_errors("measure the tables"):
        return connection.execute(statement, (relids,)).fetchall()


def _of_table(schema: TableSchema, sizes: Mapping[int, _Size]) -> _Size:
    size = sizes.get(schema.relid)
    if size is None:
        raise SourceRefused(
            "table_missing", "the table is not in the catalog", table=str(schema.id)
        )
    if size.kind != ("p" if schema.partitioned else "r"):
        raise SourceRefused(
            "not_a_table",
            "it is not a table any more, or another kind of table",
            table=str(schema.id),
            remedy="name its partitions, or leave it out",
        )
    return size


def _together(leaves: Iterable[_Size]) -> _Size:
    blocks = total_bytes = pages = 0
    rows = 0.0
    for leaf in leaves:
        blocks += leaf.blocks
        total_bytes += leaf.total_bytes
        # Those that were never analyzed are taken to be as dense as the others.
        if leaf.rows >= 0:
            rows += leaf.rows
            pages += leaf.pages
    return _Size("p", blocks, total_bytes, rows, pages)
