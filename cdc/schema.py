"""Versioned schemas of a captured table. Pure; the record form is pinned in docs/formats.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from cdc.errors import LogError
from cdc.names import TableId, derived_columns
from cdc.position import Position

#: What becomes of a value that a column's Delta type cannot hold: the nearest one that it can
#: (NULL where there is none), NULL, its text in a column of text, or an error.
CLAMP, NULL, STRING, ERROR = "clamp", "null", "string", "error"
#: An array is an ARRAY, not its text; what becomes of elements that their type cannot hold.
ARRAY, ARRAY_NULL, ARRAY_ERROR = "array", "array_null", "array_error"
#: To the policy of the elements.
ARRAY_POLICIES: Final = {ARRAY: CLAMP, ARRAY_NULL: NULL, ARRAY_ERROR: ERROR}


@dataclass(frozen=True, slots=True)
class WireType:
    """What a column's values are on the wire, once domains and arrays are looked through.

    Args:
        oid: The base type, or the base type of an array's elements.
        typmod: Of that type, -1 for none.
        array: Whether values are arrays of it, of any number of dimensions.
        delimiter: Between an array's elements.
    """

    oid: int
    typmod: int
    array: bool = False
    delimiter: str = ","


@dataclass(frozen=True, slots=True)
class Column:
    """One published column.

    Args:
        id: Stable across renames and never reused within a load (attnum when the catalog
            agrees with the stream, else a counter).
        name: As Postgres spells it.
        type_oid: The type's OID in the source.
        typmod: ``atttypmod``, -1 for none.
        type: Postgres' own text of the type, ``numeric(10,2)``.
        not_null: Whether the column is declared NOT NULL.
        default: The default's expression as text, or None.
        wire: What a domain or an array comes to; None for every other type.
        policy: How a replica holds values that its type cannot; of cdc.yaml, not of the record.
        hidden: The derived table does not have it (any more), by the table's schema policy.
        derived_name: In the derived table, if another; not of the record.
    """

    id: int
    name: str
    type_oid: int
    typmod: int
    type: str
    not_null: bool
    default: str | None = None
    wire: WireType | None = None
    policy: str = CLAMP
    hidden: bool = False
    derived_name: str | None = None

    @property
    def target(self) -> str:
        """Its name in the derived table."""
        return self.derived_name or self.name

    @property
    def resolved(self) -> WireType:
        """What its values are on the wire."""
        return self.wire or WireType(self.type_oid, self.typmod)

    @property
    def element(self) -> Column | None:
        """An element of the derived table's ARRAY, as a column; None: the column is no ARRAY."""
        wire = self.resolved
        if self.policy not in ARRAY_POLICIES or not wire.array:
            return None
        return replace(self, wire=replace(wire, array=False), policy=ARRAY_POLICIES[self.policy])

    def to_record(self) -> dict[str, Any]:
        """Its part of the ``["schema", …]`` control record."""
        record: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "type_oid": self.type_oid,
            "typmod": self.typmod,
            "type": self.type,
            "not_null": self.not_null,
            "default": self.default,
        }
        if self.wire is not None:
            record["as"] = {
                "oid": self.wire.oid,
                "typmod": self.wire.typmod,
                "array": self.wire.array,
                "delimiter": self.wire.delimiter,
            }
        return record | ({"hidden": True} if self.hidden else {})

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Column:
        """Read its part of a control record; raises KeyError for a lost field."""
        wire = record.get("as")
        return cls(
            id=record["id"],
            name=record["name"],
            type_oid=record["type_oid"],
            typmod=record["typmod"],
            type=record["type"],
            not_null=record["not_null"],
            default=record.get("default"),
            wire=wire and WireType(wire["oid"], wire["typmod"], wire["array"], wire["delimiter"]),
            hidden=record.get("hidden", False),
        )


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's schema within a load.

    Args:
        schema: The table's schema in the source.
        table: The table's name in the source.
        load: The load, from 1.
        version: From 1, counted up with each change within the load.
        relid: The table's OID in the source.
        identity: Replica identity: ``d`` default, ``f`` full, ``i`` index.
        key: Names of the key columns, in the order of the record key; none: its rows are counted.
        columns: The published columns, in the order of the wire.
        valid_from: Position of the first event that has this version.
        partitioned: A partitioned table, whose partitions' changes come under its own name.
        deferrable: The key is checked only at the end of a transaction, which can swap keys.
        chosen: The key is one that cdc.yaml gives.
        row_filter: SQL condition of the rows that the publication has; None: it has all.
        dropped: Columns of earlier versions of the load that are gone. The derived table keeps
            those that are not hidden, NULL in every row. No later column has one's name.
    """

    schema: str
    table: str
    load: int
    version: int
    relid: int
    identity: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    valid_from: Position
    partitioned: bool = False
    deferrable: bool = False
    chosen: bool = False
    row_filter: str | None = None
    dropped: tuple[Column, ...] = ()

    @property
    def id(self) -> TableId:
        """Schema and name of the table."""
        return TableId(self.schema, self.table)

    @property
    def counted(self) -> bool:
        """Whether it has no key: rows that are equal are told by their number alone."""
        return not self.key

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the wire."""
        return tuple(c.name for c in self.columns)

    @cached_property
    def key_indexes(self) -> tuple[int, ...]:
        """Where the key columns stand in a row."""
        names = self.column_names
        return tuple(names.index(k) for k in self.key)

    @property
    def kept(self) -> tuple[Column, ...]:
        """Columns that the source has not any more, and the derived table still has."""
        return tuple(c for c in self.dropped if not c.hidden)

    @property
    def ignored(self) -> tuple[Column, ...]:
        """Columns that the source has, and the derived table has not."""
        return tuple(c for c in self.columns if c.hidden)

    def derived(self) -> TableSchema:
        """What the derived table has of it, and how it is called there."""
        all_of_load = sorted((*self.columns, *self.dropped), key=lambda column: column.id)
        names = derived_columns(column.name for column in all_of_load)

        def named(columns: Iterable[Column]) -> tuple[Column, ...]:
            return tuple(
                c if names[c.name] == c.name else replace(c, derived_name=names[c.name])
                for c in columns
            )

        shown = (c for c in self.columns if not c.hidden)
        return replace(self, columns=named(shown), dropped=named(self.dropped))

    def column(self, name: str) -> Column:
        """The column of this name; raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def to_record(self) -> dict[str, Any]:
        """The value of the ``["schema", …]`` control record."""
        record: dict[str, Any] = {
            "v": 1,
            "from": str(self.valid_from),
            "relid": self.relid,
            "schema": self.schema,
            "table": self.table,
            "identity": self.identity,
            "key": list(self.key),
            "columns": [c.to_record() for c in self.columns],
        }
        if self.dropped:
            record["dropped"] = [c.to_record() for c in self.dropped]
        # Few tables are; records without them read as before.
        flags = {
            "partitioned": self.partitioned,
            "deferrable": self.deferrable,
            "chosen": self.chosen,
        }
        record |= {name: True for name, on in flags.items() if on}
        return record | ({} if self.row_filter is None else {"row_filter": self.row_filter})

    @classmethod
    def from_record(cls, load: int, version: int, record: dict[str, Any]) -> TableSchema:
        """Read a control record's value; raises LogError for an unknown ``v`` or a lost field."""
        if record.get("v") != 1:
            raise LogError("unknown_version", f"schema record of version {record.get('v')!r}")
        try:
            return cls(
                schema=record["schema"],
                table=record["table"],
                load=load,
                version=version,
                relid=record["relid"],
                identity=record["identity"],
                key=tuple(record["key"]),
                columns=tuple(Column.from_record(c) for c in record["columns"]),
                valid_from=Position.parse(record["from"]),
                partitioned=record.get("partitioned", False),
                deferrable=record.get("deferrable", False),
                chosen=record.get("chosen", False),
                row_filter=record.get("row_filter"),
                dropped=tuple(Column.from_record(c) for c in record.get("dropped", ())),
            )
        except KeyError as missing:
            raise LogError("bad_record", f"schema record without {missing}") from None
