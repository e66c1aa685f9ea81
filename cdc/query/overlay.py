"""Makes one table of a query: the replica's rows without the tail's keys, plus the tail's rows.

In DuckDB, as the view ``source.schema.table``. The exclusion is NOT IN on an encoded key that
is never NULL; a plain anti-join would hash the big side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdc.codecs import delta_type
from cdc.counted import DIGEST_LENGTH
from cdc.errors import LakeError
from cdc.query.replica_reader import OpenReplica, local_path
from cdc.query.statement import TableName
from cdc.query.tail import KEY_COLUMN, KeyEncoder, Tail, number_copies, settle_tail
from cdc.schema import Column, TableSchema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

#: The catalog of our own tables; no source can have this name.
INTERNAL: Final = "_cdc"
_DUCKDB: Final = {
    "INT": "INTEGER",
    "STRING": "VARCHAR",
    "BINARY": "BLOB",
    "TIMESTAMP": "TIMESTAMPTZ",
    "TIMESTAMP_NTZ": "TIMESTAMP",
}
# Virtual columns of read_parquet that place a row; a real column of that name would hide them.
_VIRTUAL: Final = frozenset(("file_index", "file_row_number"))
_FILE_BITS: Final = 40


def duckdb_type(column: Column) -> str:
    """DuckDB's type of a column, which holds exactly the values of its Delta type."""
    if column.element is not None:
        return f"{duckdb_type(column.element)}[]"
    ddl = delta_type(column)
    return _DUCKDB.get(ddl, ddl)


def quoted(*parts: str) -> str:
    """A name in quotes."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


class TableOverlay:
    """Builds one table in a connection.

    Args:
        connection: With the catalog ``INTERNAL``.
        number: Unique in the connection.
        name: The view to make.
        schema: Valid at F: the view's columns.
        replica: At P, or None when everything comes from the log.

    Raises:
        LakeError: ``replica_type`` when a column of the replica has another type than F says.
    """

    def __init__(
        self,
        connection: DuckDBPyConnection,
        number: int,
        name: TableName,
        schema: TableSchema,
        replica: OpenReplica | None,
    ) -> None:
        self._con = connection
        self._name = name
        self._schema = schema
        self._replica = replica
        self._key = KeyEncoder(schema)
        self._prefix = f"{INTERNAL}.main.t{number}"
        if replica is not None:
            _check_types(name, schema, replica, self._key)

    @property
    def files(self) -> tuple[str, ...]:
        """Files that the view reads when it is queried."""
        replica = self._replica
        return replica.files if replica is not None and self._reads_files else ()

    @property
    def _reads_files(self) -> bool:
        replica = self._replica
        if replica is None or not replica.files or not replica.plain:
            return False
        return not _VIRTUAL.intersection(c.lower() for c in replica.columns)

    def create(self, tail: Tail) -> None:
        """Create the view.

        Args:
            tail: The range [P, F), not settled.

        Raises:
            LogError: ``value_lost``, ``row_missing``.
            LakeError: ``value_out_of_range``, ``replica_unreadable``.
        """
        import duckdb

        try:
            self._create(tail)
        except duckdb.Error as problem:
            raise LakeError(
                "replica_unreadable",
                f"the replica's files cannot be read ({type(problem).__name__})",
                table=str(self._name),
                remedy=f"cdc rebuild {self._name} --from-offset 0",
            ) from None

    # --- inside ---

    def _create(self, tail: Tail) -> None:
        has_base = tail.keeps_base and self._make_base()
        names = self._schema.column_names
        tail = number_copies(tail, self._copies(tail) if has_base else {}, self._schema)
        tail = settle_tail(tail, names, self._inherited(tail) if has_base else {})
        columns = ", ".join(quoted(c.target) for c in self._schema.columns)
        # Of columns that the source dropped and the derived table keeps, no row has a value.
        shown = columns + "".join(
            f", CAST(NULL AS {duckdb_type(c)}) AS {quoted(c.target)}" for c in self._schema.kept
        )
        parts = []
        if has_base:
            base = f"SELECT {shown} FROM {self._prefix}_base"  # noqa: S608
            if tail.keys:
                keys = self._key_table("keys", tail.keys)
                base += f" WHERE {KEY_COLUMN} NOT IN (SELECT {KEY_COLUMN} FROM {keys})"  # noqa: S608
            parts.append(base)
        if tail.rows or not parts:
            declared = ", ".join(
                f"{quoted(c.target)} {duckdb_type(c)}" for c in self._schema.columns
            )
            rows = self._table("tail", declared, tail.rows)
            parts.append(f"SELECT {shown} FROM {rows}")  # noqa: S608
        source, table = self._name
        # A fresh in-memory database has this catalog already.
        if source != "memory":
            self._con.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(source)}")
        self._con.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(source, table.schema)}")
        self._con.execute(f"CREATE VIEW {quoted(source, *table)} AS " + " UNION ALL ".join(parts))

    def _table(self, kind: str, declared: str, rows: Iterable[Sequence[Any]]) -> str:
        """A table of our own with these rows; its name."""
        name = f"{self._prefix}_{kind}"
        self._con.execute(f"CREATE TABLE {name} ({declared})")
        import duckdb

        appender = self._con.appender(name)
        try:
            appender.append_rows(rows)
            appender.flush()
        except (duckdb.Error, OverflowError) as problem:
            # Its message holds the value.
            raise LakeError(
                "value_out_of_range",
                f"the log holds a value that its Delta type cannot hold ({type(problem).__name__})",
                table=str(self._name),
            ) from None
        return name

    def _key_table(self, kind: str, keys: Iterable[Any]) -> str:
        key_type = "VARCHAR" if self._key.column is None else duckdb_type(self._key.column)
        return self._table(kind, f"{KEY_COLUMN} {key_type} NOT NULL", ((key,) for key in keys))

    def _make_base(self) -> bool:
        """The view of the replica's live rows with their encoded keys; False when empty."""
        replica = self._replica
        if replica is None or not replica.files:
            return False
        select = [f"{quoted(self._key.name)} AS {KEY_COLUMN}"]
        for column in self._schema.columns:
            name = quoted(column.target)
            value = name if column.target in replica.columns else "NULL"
            # Files may hold an instant without its time zone; the session's is UTC.
            select.append(f"CAST({value} AS {duckdb_type(column)}) AS {name}")
        origin = self._parquet(replica) if self._reads_files else self._scanned(replica)
        self._con.execute(
            f"CREATE VIEW {self._prefix}_base AS SELECT {', '.join(select)} FROM {origin}"  # noqa: S608
        )
        return True

    def _parquet(self, replica: OpenReplica) -> str:
        files = ", ".join("'" + path.replace("'", "''") + "'" for path in replica.files)
        # Files that are older than a column lack it. This opens every file, so only if needed.
        union = "true" if self._schema.version > 1 else "false"
        origin = f"read_parquet([{files}], union_by_name = {union}, hive_partitioning = false)"
        deleted = self._deleted(replica)
        if deleted is None:
            return origin
        return (
            f"(SELECT * FROM {origin} WHERE (file_index::BIGINT << {_FILE_BITS})"  # noqa: S608
            f" + file_row_number NOT IN (SELECT place FROM {deleted}))"
        )

    def _deleted(self, replica: OpenReplica) -> str | None:
        """The table of places (file, row) that deletion vectors void; None without any."""
        vectors, name = f"{self._prefix}_vectors", f"{self._prefix}_deleted"
        self._materialise(vectors, replica.table.deletion_vectors())
        places = {path: index for index, path in enumerate(replica.files)}
        found = self._con.execute(f"SELECT filepath FROM {vectors}").fetchall()  # noqa: S608
        if not found:
            return None
        rows = [(uri, places.get(local_path(uri, str(self._name)))) for (uri,) in found]
        if any(index is None for _, index in rows):
            raise LakeError(
                "replica_unreadable",
                "a deletion vector of the replica belongs to no file",
                table=str(self._name),
            )
        files = self._table("files", "uri VARCHAR, index BIGINT NOT NULL", rows)
        self._con.execute(
            f"CREATE TABLE {name} AS SELECT (index << {_FILE_BITS}) + row AS place FROM ("  # noqa: S608
            " SELECT filepath, unnest(selection_vector) AS keep,"
            " unnest(range(len(selection_vector))) AS row"
            f" FROM {vectors}) JOIN {files} ON uri = filepath WHERE NOT keep"
        )
        self._con.execute(f"DROP TABLE {vectors}")
        return name

    def _scanned(self, replica: OpenReplica) -> str:
        """The replica copied through deltalake's own reader, which knows every table feature."""
        name = f"{self._prefix}_scan"
        self._materialise(name, replica.table.scan())
        return name

    def _materialise(self, name: str, reader: Any) -> None:
        self._con.register("cdc_arrow", reader)
        self._con.execute(f"CREATE TABLE {name} AS SELECT * FROM cdc_arrow")  # noqa: S608
        self._con.unregister("cdc_arrow")

    def _copies(self, tail: Tail) -> Mapping[str, int]:
        """How many copies the replica has of rows that the tail counts, by digest."""
        if tail.tally is None or not tail.keys:
            return {}
        digests = self._table("digests", "digest VARCHAR NOT NULL", ((d,) for d in tail.keys))
        digest = f"{KEY_COLUMN}[:{DIGEST_LENGTH}]"
        rows = self._con.execute(
            f"SELECT {digest}, count(*) FROM {self._prefix}_base"  # noqa: S608
            f" WHERE {digest} IN (SELECT digest FROM {digests}) GROUP BY 1"
        ).fetchall()
        return dict(rows)

    def _inherited(self, tail: Tail) -> Mapping[bytes, Mapping[str, Any]]:
        """The replica's values of columns that rows of the tail take over, by record key."""
        wanted = tail.inherited(self._schema.column_names)
        held = self._replica.columns if self._replica else {}
        targets = {c.name: c.target for c in self._schema.columns if c.name in wanted.columns}
        columns = sorted(c for c, target in targets.items() if target in held)
        if not columns:
            return {}
        encoded = {self._key(key): key for key in wanted.keys}
        keys = self._key_table("inherit", encoded)
        select = ", ".join((KEY_COLUMN, *(quoted(targets[c]) for c in columns)))
        rows = self._con.execute(
            f"SELECT {select} FROM {self._prefix}_base"  # noqa: S608
            f" WHERE {KEY_COLUMN} IN (SELECT {KEY_COLUMN} FROM {keys})"
        ).fetchall()
        return {encoded[key]: dict(zip(columns, values, strict=True)) for key, *values in rows}


def _check_types(
    name: TableName, schema: TableSchema, replica: OpenReplica, key: KeyEncoder
) -> None:
    for column in schema.columns:
        kind = replica.columns.get(column.target)
        if kind is not None and kind != delta_type(column):
            raise _type_error(name, column.name, kind, delta_type(column))
    if key.name not in replica.columns:
        raise _type_error(name, key.name, "nothing", "the key")


def _type_error(name: TableName, column: str, held: str, wanted: str) -> LakeError:
    return LakeError(
        "replica_type",
        f"the replica's column {column} is {held}, where {wanted} is expected",
        table=str(name),
        remedy=f"cdc rebuild {name} --from-offset 0",
    )
