"""How a replica's Delta table is laid out for a source table's schema. Pure but for types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cdc import codecs
from cdc.errors import LakeError
from cdc.lake import KEY_COLUMN, LSN_COLUMN
from cdc.schema import Column, TableSchema

#: In a batch's frame, not in the table: the key is to be removed.
GONE_COLUMN: Final = "_cdc_gone"
_HIDDEN_PREFIX: Final = "_cdc_"
_ARRAY: Final = "ARRAY<"
#: Whether columns have names of their own in files.
MAPPING_PROPERTY: Final = "delta.columnMapping.mode"
#: Parquet's writer refuses these in column names unless names are mapped.
_NEED_MAPPING: Final = frozenset(" ,;{}()\n\t=")

_DELTA_NAMES: Final = {
    "BOOLEAN": "boolean",
    "SMALLINT": "short",
    "INT": "integer",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
}


_SPARK_TYPES: Final[dict[str, Callable[[], DataType]]] = {
    "BOOLEAN": BooleanType,
    "SMALLINT": ShortType,
    "INT": IntegerType,
    "BIGINT": LongType,
    "FLOAT": FloatType,
    "DOUBLE": DoubleType,
    "STRING": StringType,
    "BINARY": BinaryType,
    "DATE": DateType,
    "TIMESTAMP": TimestampType,
    "TIMESTAMP_NTZ": TimestampNTZType,
}


def quote(name: str) -> str:
    """A column name or path in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def delta_name(ddl: str) -> str:
    """Delta's own name of a type: ``INT`` → ``integer``."""
    if ddl.startswith(_ARRAY):
        return f"array<{delta_name(ddl[len(_ARRAY) : -1])}>"
    return _DELTA_NAMES.get(ddl) or ddl.lower()


def spark_type(ddl: str) -> DataType:
    """Spark's type of a DDL name."""
    if ddl.startswith(_ARRAY):
        return ArrayType(spark_type(ddl[len(_ARRAY) : -1]))
    if ddl.startswith("DECIMAL"):
        precision, scale = ddl[8:-1].split(",")
        return DecimalType(int(precision), int(scale))
    return _SPARK_TYPES[ddl]()


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a replica.

    Args:
        schema: Of the source table, as of the frontier that is written.
        table: ``source.schema.table``, for messages.
    """

    schema: TableSchema
    table: str

    @property
    def simple_key(self) -> Column | None:
        """The key column when its values are compared as they are, else None."""
        if len(self.schema.key) == 1:
            column = self.schema.column(self.schema.key[0])
            if codecs.is_simple_key(column):
                return column
        return None

    @property
    def key_column(self) -> str:
        """The one column of the replica that identifies a row."""
        simple = self.simple_key
        return KEY_COLUMN if simple is None else simple.target

    @property
    def key_type(self) -> str:
        """Spark DDL of ``key_column``."""
        simple = self.simple_key
        return "STRING" if simple is None else codecs.delta_type(simple)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Name and Spark DDL of every column with values, those of ours last."""
        hidden = [(LSN_COLUMN, "BIGINT")]
        if self.simple_key is None:
            hidden.append((KEY_COLUMN, "STRING"))
        return [(c.target, codecs.delta_type(c)) for c in self.schema.columns] + hidden

    @property
    def names(self) -> list[str]:
        """Names of every column with values."""
        return [name for name, _ in self.columns]

    @property
    def kept(self) -> list[tuple[str, str]]:
        """Name and Spark DDL of columns that are NULL in every row: the source dropped them."""
        return [(c.target, codecs.delta_type(c)) for c in self.schema.kept]

    @property
    def table_columns(self) -> list[tuple[str, str]]:
        """Name and Spark DDL of every column of the replica."""
        return self.columns + self.kept

    def arrow_schema(self, *, gone: bool) -> Any:
        """The same for Arrow; with ``_cdc_gone`` when asked for."""
        fields = [pa.field(c.target, codecs.arrow_type(c)) for c in self.schema.columns]
        fields.append(pa.field(LSN_COLUMN, pa.int64()))
        if self.simple_key is None:
            fields.append(pa.field(KEY_COLUMN, pa.string()))
        if gone:
            fields.append(pa.field(GONE_COLUMN, pa.bool_()))
        return pa.schema(fields)

    def spark_schema(self, *, gone: bool) -> StructType:
        """The same for Spark."""
        columns = self.columns + ([(GONE_COLUMN, "BOOLEAN")] if gone else [])
        return StructType([StructField(name, spark_type(ddl)) for name, ddl in columns])

    def properties(self, app: str) -> dict[str, str]:
        """Table properties of a replica."""
        properties = {
            "cdc.app": app,
            "delta.enableDeletionVectors": "true",
            "delta.dataSkippingStatsColumns": ",".join(map(quote, (self.key_column, LSN_COLUMN))),
        }
        if any(_NEED_MAPPING & set(name) for name, _ in self.table_columns):
            properties[MAPPING_PROPERTY] = "name"
        return properties

    def check(self) -> None:
        """Refuse columns that Delta cannot hold.

        Raises:
            LakeError: ``unsupported_columns``.
        """
        for name in self.schema.column_names:
            if name.lower().startswith(_HIDDEN_PREFIX):
                raise LakeError(
                    "unsupported_columns",
                    f"names like {name} are kept for cdc",
                    table=self.table,
                    remedy=f"rename column {name}, or leave the table out of cdc.yaml",
                )
