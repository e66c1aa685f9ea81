"""JSON values of the envelope to exact values of a replica's columns, in Spark.

The counterpart of ``cdc.codecs.from_json``: what one refuses, the other refuses. A value that
does not parse is an error, never NULL.
"""

from __future__ import annotations

import datetime as dt

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from cdc import codecs
from cdc.schema import CLAMP
from cdc.schema import Column as SchemaColumn
from spark_jobs.failures import fail_if
from spark_jobs.texts import BOUNDS, JSON_OPTIONS, postgres_text

_PLAIN_DATE = len("2024-02-29")


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
        A value of the column's Delta type, by the column's policy; evaluating it fails with
        ``value_out_of_range``.
    """
    if column.element is not None:
        return _array(column, column.element, index, text)
    ddl = codecs.delta_type(column)
    value = _exact(column, text, ddl)
    if value is text:
        return text
    wrong = text.isNotNull() & value.isNull()
    if codecs.bends(column):
        far = out_of_range(column, text)
        wrong &= ~far
        value = f.coalesce(value, f.when(far, _instead(column, text).cast(ddl.lower())))
    failure = fail_if(wrong, "value_out_of_range", index)
    # The failure is NULL when there is none, so coalesce always evaluates it first.
    return f.coalesce(failure.cast(ddl.lower()), value)


def out_of_range(column: SchemaColumn, text: Column) -> Column:
    """Whether the Delta type cannot hold a value of a column that ``bends``; never NULL."""
    element = column.element
    if element is not None:
        found = _fits_no_array(text)
        if codecs.bends(element):
            found |= f.exists(_parts(text), lambda part: out_of_range(element, part))
        return f.coalesce(found, f.lit(False))
    if codecs.policies.ends(column) is None:
        found = text.isin(*codecs.policies.NO_NUMBERS)
    else:
        # Most values are told by a glance.
        usual = (f.length(text) == _PLAIN_DATE) | (f.substring(text, 11, 1) == "T")
        found = ~usual & text.rlike(f"^({codecs.policies.FAR_TEXT})$")
    return f.coalesce(found, f.lit(False))


def _array(column: SchemaColumn, element: SchemaColumn, index: int, text: Column) -> Column:
    """An ARRAY; NULL for what has bounds or more dimensions, or an error by the policy."""
    no_array = _fits_no_array(text)
    parts = f.when(~no_array, _parts(text))
    value = f.transform(parts, lambda part: typed(element, index, part))
    wrong = text.isNotNull() & parts.isNull()
    if codecs.bends(column):
        wrong &= ~no_array
    failure = fail_if(wrong, "value_out_of_range", index)
    # A text is no array: the failure can only be looked at, and is NULL where there is none.
    return f.when(failure.isNull(), value)


def _fits_no_array(text: Column) -> Column:
    """As ``cdc.codecs`` sees it: the log writes no blanks, and bounds make an array a text."""
    return text.startswith("[[") | text.rlike(BOUNDS)


def _parts(text: Column) -> Column:
    """The elements of a JSON array, each as the text it has in JSON."""
    return f.from_json(text, "array<string>", JSON_OPTIONS)


def _instead(column: SchemaColumn, text: Column) -> Column:
    """What the column's policy puts in the place of a value that is out of range."""
    limits = codecs.policies.ends(column)
    if limits is None or column.policy != CLAMP:
        return f.lit(None)
    low, high = (f.lit(_sql_text(limit)) for limit in limits)
    return f.when(text.startswith("-") | text.endswith("BC"), low).otherwise(high)


def _sql_text(limit: dt.date) -> str:
    return limit.isoformat(sep=" ") if isinstance(limit, dt.datetime) else limit.isoformat()


def _exact(column: SchemaColumn, text: Column, ddl: str) -> Column:
    """NULL for NULL, and for what is no value of the type."""
    if ddl == "STRING":
        if codecs.from_json(column) is codecs.same:
            return text
        return postgres_text(column.resolved, text)
    if ddl == "BOOLEAN":
        return f.when(text == "true", True).when(text == "false", False)
    if ddl == "BINARY":
        return f.try_to_binary(text, f.lit("base64"))
    if ddl == "DATE":
        return f.when(f.length(text) == 10, text).try_cast("date")
    if ddl in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        plain = f.when(f.substring(text, 11, 1) == "T", text)
        return plain.try_cast(ddl.lower())
    return text.try_cast(ddl.lower())
