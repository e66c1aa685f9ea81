"""The first load with one worker into Kafka, against COPY TO STDOUT into nothing.

A table of 10 narrow columns. ``encode`` is the worker's work without Kafka, in this process.
"""

import resource
import statistics
import tempfile
import time
from pathlib import Path

import psutil
import psycopg

from cdc.batch_encoder import BatchEncoder
from cdc.envelope import RowEncoder, TransactionFields
from cdc.log.admin import LogAdmin
from snapshots.copytext import parse_block
from snapshots.load import run_exported_load
from snapshots.plan import BlockRange
from snapshots.source import RangeCopy
from tests.support.export import exported, load_request
from tests.support.stack import open_stack

TABLE = """
create table narrow (
    id bigint primary key, a integer, b bigint, c text, d text, e numeric(10,2),
    f timestamptz, g boolean, h double precision, i date)
"""
INSERT = """
insert into narrow select i, i % 1000, i::bigint * 7919, 'name ' || i, substr(md5(i::text), 1, 12),
    (i % 100000) / 100.0, timestamptz '2020-01-01' + i * interval '1.234567 s', i % 2 = 0, i / 3.0,
    date '2001-01-01' + i % 9000
    from generate_series(1, ROWS) i
"""
ROUNDS = 3


def raw(session, schema):
    rows = 0
    for block in RangeCopy(session, schema, BlockRange(0, 0, None)).blocks():
        rows += block.count(b"\n")
    return rows


def encode(session, schema, origin):
    load = TransactionFields(1, 1, None, 1, 1, snapshot=True)
    encoder = BatchEncoder(RowEncoder(schema, origin))
    rows = 0
    for block in RangeCopy(session, schema, BlockRange(0, 0, None)).blocks():
        batch = parse_block(block, len(schema.columns))
        _, values = encoder.snapshot_rows(list(zip(*batch, strict=True)), load)
        rows += len(values)
    return rows


def timed(work, *arguments):
    before = time.perf_counter()
    rows = work(*arguments)
    return rows / (time.perf_counter() - before)


class Load:
    """One load, with what its worker took."""

    def __init__(self, export, bootstrap, prefix):
        self.request = load_request(export, bootstrap, prefix, ["narrow"], workers=1)
        self.peak = 0

    def run(self):
        before = children_seconds()
        result = run_exported_load(self.request, self.look)
        self.cpu_seconds = children_seconds() - before
        (rows,) = result.rows.values()
        return rows

    def look(self, _progress):
        for process in psutil.Process().children():
            try:
                if "snapshots.worker" in process.cmdline():
                    self.peak = max(self.peak, process.memory_info().rss)
            except psutil.NoSuchProcess:
                continue


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(rows=1_000_000):
    with tempfile.TemporaryDirectory() as folder, open_stack(Path(folder)) as stack:
        conninfo = stack.postgres.create_database("bench")
        with psycopg.connect(**conninfo, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(INSERT.replace("ROWS", str(rows)))
            connection.execute("vacuum analyze narrow")
        return measure(stack.bootstrap, conninfo, rows)


def measure(bootstrap, conninfo, rows):
    speeds: dict[str, list[float]] = {"raw_copy": [], "encode": [], "load": []}
    cpu, peak = [], 0
    with exported(conninfo) as export, export.session() as session:
        for number in range(ROUNDS):
            load = Load(export, bootstrap, f"bench{number}.")
            (task,) = load.request.tasks
            speeds["raw_copy"].append(timed(raw, session, task.schema))
            speeds["encode"].append(timed(encode, session, task.schema, load.request.origin))
            speeds["load"].append(timed(load.run))
            cpu.append(load.cpu_seconds)
            peak = max(peak, load.peak)
            LogAdmin(bootstrap).delete_topics([task.topic])
    medians = {name: round(statistics.median(values)) for name, values in speeds.items()}
    return {
        "figures": {
            **{f"{name}_rows_per_second": value for name, value in medians.items()},
            "spread": {name: [round(min(v)), round(max(v))] for name, v in speeds.items()},
            "load_cpu_seconds_per_million_rows": round(statistics.median(cpu) / rows * 1e6, 2),
            "load_peak_mib": round(peak / 2**20),
        },
        "ratios": {
            "load_to_raw_copy": round(medians["load"] / medians["raw_copy"], 3),
            "encode_to_raw_copy": round(medians["encode"] / medians["raw_copy"], 3),
        },
    }
