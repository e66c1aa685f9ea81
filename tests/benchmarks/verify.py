"""``cdc verify`` of a table of equal rows, as a user starts it, against reading the table once.

The table has 16 columns (parts/firenibble.py). Its replica holds all rows, made without Spark;
the log's tail is empty. ``copy`` is COPY into nothing, which is less than any comparison has to
do that takes the rows out of Postgres. CPU seconds are of the command and of Postgres; the
wall clock is good only on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa

from cdc.lake import LSN_COLUMN
from cdc.names import TableId
from cdc.query.overlay import duckdb_type
from cdc.schema import TableSchema
from tests.benchmarks.parts import firenibble
from tests.benchmarks.parts.runs import Run, figures, ratio
from tests.benchmarks.parts.servers import Servers, own_servers
from tests.support.capturing import Capturing
from tests.support.usage import children_seconds, peak_bytes
from tests.support.verifying import Verifying

ROUNDS = 3
TABLE = firenibble.NAME


def run(rows: int = 1_000_000) -> dict[str, Any]:
    """Measure; the table and its replica are made first."""
    with own_servers() as servers, tempfile.TemporaryDirectory() as folder:
        firenibble.grow(servers.conninfo, 0, rows)
        prefix = f"b{uuid.uuid4().hex[:8]}."
        # Its log is empty: the replica stands for a load.
        capturing = Capturing(servers.bootstrap, servers.conninfo, prefix, [TABLE])
        with capturing.running():
            capturing.wait_ready(120)
            capturing.caught_up()
            project = Verifying(Path(folder), capturing)
            schema = capturing.control().newest_schema(TableId("public", TABLE), 1)
            assert schema is not None
            project.write_replica(TABLE, exported(servers.conninfo, schema, Path(folder)))
            return measure(servers, project, rows)


def exported(conninfo: Mapping[str, Any], schema: TableSchema, folder: Path) -> pa.Table:
    """The table's rows as a replica holds them."""
    path = folder / "rows.csv"
    with psycopg.connect(**conninfo) as connection, path.open("wb") as file:
        with connection.cursor().copy(f"copy {TABLE} to stdout (format csv)") as copy:
            for block in copy:
                file.write(block)
    columns = {column.name: duckdb_type(column) for column in schema.columns}
    rows = duckdb.sql(
        f"select *, 1::bigint as {LSN_COLUMN} from read_csv('{path}', header = false,"
        f" auto_detect = false, columns = {columns})"
    )
    assert rows is not None
    return rows.to_arrow_table()


def measure(servers: Servers, project: Verifying, rows: int) -> dict[str, Any]:
    runs: dict[str, list[Run]] = defaultdict(list)
    for _ in range(ROUNDS):
        runs["copy"].append(copied(servers, rows))
        runs["equal"].append(verified(servers, project, rows, 0))
    project.update(TABLE, "f0 % 100000 = 7", f3="-1")
    differing = len(range(7, rows + 1, 100_000))
    runs["different"].append(verified(servers, project, rows, differing))
    return {
        "figures": {
            **{
                name: {"seconds": [round(one.seconds, 2) for one in some], **figures(some)}
                for name, some in runs.items()
            },
            "cores_here": os.cpu_count(),
            "load_here": round(os.getloadavg()[0], 1),
        },
        "ratios": {
            "equal_to_copy_seconds": ratio(runs["equal"], runs["copy"], "seconds"),
            "different_to_equal_seconds": ratio(runs["different"], runs["equal"], "seconds"),
        },
    }


def copied(servers: Servers, rows: int) -> Run:
    before, cpu, began = servers.postgres_seconds(), time.process_time(), time.perf_counter()
    received = 0
    with psycopg.connect(**servers.conninfo) as connection:
        with connection.cursor().copy(f"copy {TABLE} to stdout") as copy:
            for block in copy:
                received += len(block)
    return Run(
        rows,
        time.perf_counter() - began,
        time.process_time() - cpu,
        postgres_cpu=servers.postgres_seconds() - before,
        received_bytes=received,
    )


def verified(servers: Servers, project: Verifying, rows: int, differing: int) -> Run:
    """One command, which must find as many rows as there are, and as many that differ."""
    before, began = servers.postgres_seconds(), time.perf_counter()
    command = [sys.executable, "-m", "cdc.cli.main", "-c", str(project.path), "verify", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    cpu, peak = children_seconds(), 0
    while process.poll() is None:
        # The peak that the system tells of an ended process is its parent's, if that was higher.
        peak = max(peak, peak_bytes(process.pid))
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    answer = process.stdout.read()
    (table,) = json.loads(answer)["result"]["tables"]
    assert table["source_rows"] == table["derived_rows"] == rows, table
    assert table["listed"]["different"] == len(table["differences"]) == differing
    return Run(
        rows,
        seconds,
        children_seconds() - cpu,
        postgres_cpu=servers.postgres_seconds() - before,
        peak_bytes=peak,
    )
