"""Spark's exceptions become ours, without the row values that its messages may quote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f

from cdc import codecs
from cdc.errors import CdcError, EnvironmentProblem, LakeError, LogError
from cdc.tally import row_missing
from spark_jobs.layout import Layout

_MARK: Final = re.compile(
    r"cdc:(value_out_of_range|value_lost|bad_record|row_missing):([0-9]+):([0-9]+)"
)
_CONFLICT: Final = re.compile(r"\[?(DELTA_CONCURRENT_[A-Z_]+|DELTA_METADATA_CHANGED)\b")
_CLASS: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
_CANCELLED: Final = re.compile(r"cancelled|SPARK_JOB_CANCELLED|SparkContext was shut down")


def fail_if(condition: Column, kind: str, first: Column | int, second: Column | int = 0) -> Column:
    """NULL, or an error in Spark that ``spark_failures`` turns into ours; never with a value.

    Args:
        condition: When to fail.
        kind: ``value_out_of_range`` (column index), ``value_lost`` (column index),
            ``bad_record`` (partition, offset), ``row_missing`` (copies of one row that lack).
        first: First number.
        second: Second number.
    """
    parts = [part if isinstance(part, Column) else f.lit(part) for part in (first, second)]
    text = f.concat(f.lit(f"cdc:{kind}:"), parts[0], f.lit(":"), parts[1])
    return f.when(condition, f.raise_error(text).cast("string"))


@contextmanager
def spark_failures(layout: Layout, doing: str) -> Iterator[None]:
    """Map what Spark raises.

    Args:
        layout: Names the table and its columns.
        doing: What is done, as the words after "while".

    Raises:
        LakeError: ``value_out_of_range``, ``write_conflict`` (another writer), ``cancelled``,
            ``spark_failed``.
        LogError: ``value_lost``, ``bad_record``, ``row_missing``.
        EnvironmentProblem: ``spark_gone``: the JVM has ended.
    """
    try:
        yield
    except (Py4JNetworkError, ConnectionError, EOFError) as problem:
        raise EnvironmentProblem(
            "spark_gone", f"Spark's JVM has ended while {doing} ({type(problem).__name__})"
        ) from None
    except (PySparkException, Py4JError) as problem:
        raise _error(str(problem), type(problem).__name__, layout, doing) from None


def lake_not_writable(problem: OSError, layout: Layout, doing: str) -> EnvironmentProblem:
    """The error for a file that could not be written, without what its message may quote.

    Args:
        problem: What the system said.
        layout: Names the table.
        doing: What cannot be done, as the words after "cannot".
    """
    reason = problem.strerror or type(problem).__name__
    return EnvironmentProblem(
        "lake_not_writable",
        f"cannot {doing} below the lake's folder ({reason})",
        table=layout.table,
        remedy="free space there, and let the user of cdc write",
    )


def _error(text: str, kind: str, layout: Layout, doing: str) -> CdcError:
    mark = _MARK.search(text)
    if mark is not None:
        return _marked(mark[1], int(mark[2]), int(mark[3]), layout)
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        return LakeError(
            "write_conflict",
            f"somebody else wrote the Delta table while {doing} ({conflict[1]})",
            table=layout.table,
            remedy="it is tried again; only cdc may write the tables of the lake",
        )
    if _CANCELLED.search(text):
        return LakeError("cancelled", f"cancelled while {doing}", table=layout.table)
    named = _CLASS.search(text)
    return LakeError(
        "spark_failed",
        f"Spark failed while {doing} ({named[1] if named else kind})",
        table=layout.table,
    )


def _marked(kind: str, first: int, second: int, layout: Layout) -> CdcError:
    if kind == "bad_record":
        return LogError(
            "bad_record",
            f"the record at offset {second} of partition {first} is not one of ours",
            table=layout.table,
            remedy="only capture may write this topic; rebuild it with a new load",
        )
    if kind == "row_missing":
        return row_missing(layout.table, first)
    column = layout.schema.columns[first]
    if kind == "value_lost":
        return LogError(
            "value_lost",
            f"neither the replica nor the log has a value for column {column.name}",
            table=layout.table,
            remedy="start a new load of the table; REPLICA IDENTITY FULL avoids this",
        )
    return LakeError(
        "value_out_of_range",
        f"column {column.name} ({column.type}) holds a value that Delta type "
        f"{codecs.delta_type(column)} cannot hold",
        table=layout.table,
        remedy=codecs.OUT_OF_RANGE_REMEDY,
    )
