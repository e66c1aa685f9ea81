"""Writes a replica without Spark, as apply would: rows, progress, note. For tests.

Deletion vectors need Spark; everything else that readers look at is here.
"""

import json
import time
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc import codecs
from cdc.lake import KEY_COLUMN, LSN_COLUMN, AppId, CommitNote
from cdc.names import lake_folder
from cdc.position import frontier
from cdc.query.replica_reader import OpenReplica


def opened_replica(folder, held, fields, columns, position, files):
    """Rows in so many files, some of which may be empty, and as opened at ``position``."""
    for part in range(files):
        batch = pa.Table.from_pylist(held[part::files], schema=pa.schema(fields))
        write_deltalake(folder, batch, mode="append")
    table = DeltaTable(folder)
    return OpenReplica(
        version=table.version(),
        app=AppId("shop", "topic"),
        position=position,
        ends=None,
        written_us=None,
        columns=columns,
        files=tuple(str(Path(folder) / uri.rsplit("/", 1)[1]) for uri in table.file_uris()),
        plain=True,
        table=table,
    )


def replica_table(schema, rows):
    """Rows (record key to JSON values) as the replica holds them."""
    simple = len(schema.key) == 1 and codecs.is_simple_key(schema.column(schema.key[0]))
    columns = {
        c.name: pa.array(
            [_value(c, row.get(c.name)) for row in rows.values()], codecs.arrow_type(c)
        )
        for c in schema.columns
    }
    columns[LSN_COLUMN] = pa.array([1] * len(rows), pa.int64())
    if not simple:
        columns[KEY_COLUMN] = pa.array([key.decode() for key in rows], pa.string())
    return pa.table(columns)


def _value(column, value):
    if value is None:
        return None
    return codecs.from_json(column)(value)


def write_replica(
    lake, source, schema, rows, position, topic_id, *, ends=None, epoch=0, age_days=0
):
    """The replica of a table at a position; without ``ends`` its note is of another position.

    ``rows`` are as for ``replica_table``, or such a table.
    """
    app = AppId(source, topic_id, epoch=epoch)
    folder = lake_folder(str(lake), source, schema.schema, schema.table)
    written_us = time.time_ns() // 1000 - age_days * 86_400_000_000
    noted = position if ends is not None else frontier(epoch, position.lsn - 1)
    note = CommitNote(noted, written_us, ends or {}, "apply", written_us // 1000).to_json()
    write_deltalake(
        folder,
        rows if isinstance(rows, pa.Table) else replica_table(schema, rows),
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": note},
            app_transactions=[Transaction(str(app), position.lsn)],
        ),
    )
    # deltalake's writer refuses properties that it does not know.
    first = Path(folder) / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().split("\n") if line]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = {"cdc.app": str(app)}
    first.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return folder
