"""Chunks of a table by the copier into Kafka, against COPY TO STDOUT into nothing.

A table of 10 narrow columns. ``encode`` is a worker's work without Kafka, in this process.
"""

import dataclasses
import resource
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psycopg

from cdc.batch_encoder import BatchEncoder
from cdc.envelope import RowEncoder, TransactionFields
from cdc.load import ChunkDone, ChunkPlan, LoadFailed
from cdc.log.admin import LogAdmin
from snapshots.copier import ChunkCopier
from snapshots.copytext import parse_block
from snapshots.source import ChunkCopy, open_session
from tests.support.copying import worker_processes
from tests.support.export import copy_settings, load_tasks
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
WHOLE = ChunkPlan(1, 1)


def raw(session, schema):
    return sum(block.count(b"\n") for block in ChunkCopy(session, schema, WHOLE, 0).blocks())


def encode(session, schema, origin):
    load = TransactionFields(1, 1, None, 1, 1, snapshot=True)
    encoder = BatchEncoder(RowEncoder(schema, origin))
    rows = 0
    for block in ChunkCopy(session, schema, WHOLE, 0).blocks():
        batch = parse_block(block, len(schema.columns))
        _, values = encoder.snapshot_rows(list(zip(*batch, strict=True)), load)
        rows += len(values)
    return rows


def timed(work, *arguments):
    before = time.perf_counter()
    rows = work(*arguments)
    return rows / (time.perf_counter() - before)


class Load:
    """One load, as long as the copier says that it is busy, with what its workers took."""

    def __init__(self, settings, task):
        self.settings, self.task = settings, task
        self.peak = 0
        self.cpu_seconds = 0.0

    def run(self):
        before = children_seconds()
        rows = 0
        with closing(ChunkCopier(self.settings)) as copier:
            copier.begin(self.task)
            while copier.busy:
                for event in copier.poll(0.25):
                    if isinstance(event, LoadFailed):
                        raise event.error
                    rows += event.rows if isinstance(event, ChunkDone) else 0
                self.look()
        # Of the workers, all of whom have ended and were waited for.
        self.cpu_seconds = children_seconds() - before
        return rows

    def look(self):
        for process in worker_processes():
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
            if peak is not None:
                self.peak = max(self.peak, int(peak.split()[1]) * 1024)


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(rows=1_000_000, workers=2):
    with tempfile.TemporaryDirectory() as folder, open_stack(Path(folder)) as stack:
        conninfo = stack.postgres.create_database("bench")
        with psycopg.connect(**conninfo, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(INSERT.replace("ROWS", str(rows)))
            connection.execute("vacuum analyze narrow")
        return measure(stack.bootstrap, conninfo, rows, workers)


def measure(bootstrap, conninfo, rows, workers):
    counts = sorted({1, workers})
    names = ["raw_copy", "encode", *(f"load_{count}" for count in counts)]
    speeds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[int, list[float]] = {count: [] for count in counts}
    peak = 0
    with closing(open_session(conninfo, "bench")) as session:
        for number in range(ROUNDS):
            tasks = [planned(session, bootstrap, conninfo, f"bench{number}-{n}.") for n in counts]
            origin = copy_settings(bootstrap, conninfo).origin
            speeds["raw_copy"].append(timed(raw, session, tasks[0].schema))
            speeds["encode"].append(timed(encode, session, tasks[0].schema, origin))
            for count, task in zip(counts, tasks, strict=True):
                load = Load(copy_settings(bootstrap, conninfo, workers=count), task)
                speeds[f"load_{count}"].append(timed(load.run))
                cpu[count].append(load.cpu_seconds)
                peak = max(peak, load.peak)
                LogAdmin(bootstrap).delete_topics([task.topic])
    medians = {name: round(statistics.median(values)) for name, values in speeds.items()}
    return {
        "figures": {
            **{f"{name}_rows_per_second": value for name, value in medians.items()},
            "spread": {name: [round(min(v)), round(max(v))] for name, v in speeds.items()},
            "chunks": tasks[0].plan.count,
            **{
                f"load_{count}_cpu_seconds_per_million_rows": round(
                    statistics.median(values) / rows * 1e6, 2
                )
                for count, values in cpu.items()
            },
            "worker_peak_mib": round(peak / 2**20),
        },
        "ratios": {
            **{
                f"{name}_to_raw_copy": round(medians[name] / medians["raw_copy"], 3)
                for name in names[1:]
            },
            f"load_{counts[-1]}_to_load_1": round(
                medians[f"load_{counts[-1]}"] / medians["load_1"], 3
            ),
        },
    }


def planned(session, bootstrap, conninfo, prefix):
    """A task with the chunks that the copier would make."""
    (task,) = load_tasks(session, bootstrap, prefix, ["narrow"])
    with closing(ChunkCopier(copy_settings(bootstrap, conninfo))) as copier:
        plan = copier.measure([task.schema])[0].plan
    return dataclasses.replace(task, plan=plan, left=tuple(range(plan.count)))
