"""JSON values of the envelope to exact values of a replica's columns, in Spark.

The counterpart of ``cdc.codecs.from_json``: what one refuses, the other refuses. A value that
does not parse is an error, never NULL.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from cdc import codecs
from cdc.schema import Column as SchemaColumn
from spark_jobs.failures import fail_if


def text_struct(names: list[str]) -> StructType:
    """A JSON object with these fields, each as the text it has in JSON."""
    return StructType([StructField(name, StringType()) for name in names])


def typed(column: SchemaColumn, index: int, text: Column) -> Column:
    """The exact value of a column.

    Args:
        column: The column.
        index: Of the column in its schema, for the error.
        text: The JSON value as text: strings without their quotes, numbers and booleans as
            they stand; NULL for null.

    Returns:
        A value of the column's Delta type; evaluating it fails with ``value_out_of_range``.
    """
    ddl = codecs.delta_type(column)
    if ddl == "STRING":
        return text
    if ddl == "BOOLEAN":
        value = f.when(text == "true", True).when(text == "false", False)
    elif ddl == "BINARY":
        value = f.try_to_binary(text, f.lit("base64"))
    elif ddl == "DATE":
        value = f.when(f.length(text) == 10, text).try_cast("date")
    elif ddl in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        plain = f.when(f.substring(text, 11, 1) == "T", text)
        value = plain.try_cast(ddl.lower())
    else:
        value = text.try_cast(ddl.lower())
    wrong = text.isNotNull() & value.isNull()
    failure = fail_if(wrong, "value_out_of_range", index)
    # The failure is NULL when there is none, so coalesce always evaluates it first.
    return f.coalesce(failure.cast(ddl.lower()), value)
