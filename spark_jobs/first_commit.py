"""The first commit of a replica, written without Spark: the empty table, as Spark makes it.

Its actions are those of the Delta protocol; a test holds them equal to Spark's own.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from cdc.errors import LakeError
from spark_jobs.failures import lake_not_writable
from spark_jobs.layout import Layout, spark_type

_READER_VERSION: Final = 3
_WRITER_VERSION: Final = 7


def write_first_commit(path: str, layout: Layout, app: str) -> None:
    """Make an empty Delta table.

    Args:
        path: The replica's folder.
        layout: Its columns; they need no column mapping.
        app: Text of ``cdc.app``.

    Raises:
        LakeError: ``table_exists``: there is a Delta table in the folder.
        EnvironmentProblem: ``lake_not_writable``.
    """
    log = Path(path) / "_delta_log"
    lines = "".join(json.dumps(action) + "\n" for action in _actions(layout, app))
    # A name that every reader of the log passes over.
    new = log / f"_commit_{uuid.uuid4()}.json.tmp"
    try:
        log.mkdir(parents=True, exist_ok=True)
        new.write_text(lines, encoding="utf-8")
        try:
            # Whole or not at all, and never over another's.
            os.link(new, log / f"{0:020}.json")
        finally:
            new.unlink()
    except FileExistsError:
        raise LakeError(
            "table_exists",
            f"there is a Delta table in {path} already",
            table=layout.table,
            remedy=f"move {path} away",
        ) from None
    except OSError as problem:
        raise lake_not_writable(problem, layout, "create a table") from None


def _actions(layout: Layout, app: str) -> list[dict[str, Any]]:
    now_ms = time.time_ns() // 1_000_000
    properties = layout.properties(app)
    schema = StructType(
        [
            StructField(name, spark_type(ddl), nullable=name != layout.key_column)
            for name, ddl in layout.table_columns
        ]
    )
    reader_features = ["deletionVectors"]
    if any("TIMESTAMP_NTZ" in ddl for _, ddl in layout.table_columns):
        reader_features.append("timestampNtz")
    return [
        {
            "commitInfo": {
                "timestamp": now_ms,
                "operation": "CREATE TABLE",
                "operationParameters": {
                    "partitionBy": "[]",
                    "isManaged": "false",
                    "properties": json.dumps(properties),
                },
                "isolationLevel": "Serializable",
                "isBlindAppend": True,
                "operationMetrics": {},
                "engineInfo": "cdc",
            }
        },
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema.json(),
                "partitionColumns": [],
                "configuration": properties,
                "createdTime": now_ms,
            }
        },
        {
            "protocol": {
                "minReaderVersion": _READER_VERSION,
                "minWriterVersion": _WRITER_VERSION,
                "readerFeatures": reader_features,
                "writerFeatures": [*reader_features, "invariants", "appendOnly"],
            }
        },
    ]
