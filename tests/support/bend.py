"""Bends a derived table as a disk or a stranger would, so that a check has something to find."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder


def change_a_balance(folder):
    """Change one row of a file that Spark wrote, in place; its id."""
    table = DeltaTable(folder)
    found = QueryBuilder().register("t", table).execute("select id, _cdc_lsn from t")
    held = {row["id"]: row["_cdc_lsn"] for row in pa.table(found.read_all()).to_pylist()}
    for uri in table.file_uris():
        path = Path(uri.removeprefix("file://"))
        rows = pq.read_table(path, partitioning=None)
        for number, row in enumerate(rows.to_pylist()):
            # A row that a deletion vector voids is older than what counts.
            if held[row["id"]] == row["_cdc_lsn"]:
                balances = rows["balance"].to_pylist()
                balances[number] += 1
                index = rows.schema.get_field_index("balance")
                field = rows.schema.field(index)
                pq.write_table(rows.set_column(index, field, [balances]), path)
                return row["id"]
    raise AssertionError("the replica has no row")
