"""Capture of a table of 10 columns into Kafka, against pg_recvlogical of the same WAL to nothing.

Transactions of 1,000 rows that are all written before. By turns, each from slots that stand at
the same place; capture is a process of its own, timed from the start of its stream to the last
frontier.
"""

import json
import re
import statistics
import subprocess
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psutil
import psycopg

from cdc.names import TableId
from cdc.position import format_lsn
from deploy.local.binaries import find_binaries
from tests.support.pipeline import Pipeline
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
TRANSACTION = 1000
PUBLICATION = "bench"


def recvlogical(binaries, conninfo, slot, end):
    """Seconds that pg_recvlogical takes up to ``end``."""
    words = {name: value for name, value in conninfo.items() if name != "password"}
    begun = time.perf_counter()
    subprocess.run(
        [
            Path(binaries) / "pg_recvlogical",
            "-d",
            " ".join(f"{name}={value}" for name, value in words.items()),
            *("--slot", slot, "--start", "--no-loop", "-f", "/dev/null"),
            *("-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}"),
            *("--endpos", format_lsn(end)),
        ],
        env={"PGPASSWORD": conninfo["password"]},
        check=True,
    )
    return time.perf_counter() - begun


def pipeline_of(folder, stack, conninfo, number):
    """A source of its own, with a slot of its own, of the same table."""
    folder.mkdir()
    pipeline = Pipeline(
        folder, stack.bootstrap, conninfo, [TableId("public", "narrow")], prefix=f"bench{number}."
    )
    text = pipeline.config_path.read_text()
    own = f"    slot: bench_{number}\n    publication: {{name: {PUBLICATION}}}\n    tables:"
    text = text.replace("project: test", f"project: test{number}").replace("    tables:", own)
    pipeline.config_path.write_text(text)
    return pipeline


def captured(pipeline, slot, end):
    """Seconds of streaming, peak resident MiB and CPU seconds."""
    process = pipeline.start_capture()
    # The slot is confirmed right after the last frontier; asking Kafka would cost more.
    with psycopg.connect(**pipeline.conninfo, autocommit=True) as connection:
        query = "select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = %s"
        deadline = time.monotonic() + 600
        while connection.execute(query, (slot,)).fetchall()[0][0] < end:
            assert pipeline.running("capture") and time.monotonic() < deadline
            time.sleep(0.02)
    last = time.time()
    usage = psutil.Process(process.pid).cpu_times()
    status = Path(f"/proc/{process.pid}/status").read_text()
    (peak,) = (int(kib) / 1024 for kib in re.findall(r"VmHWM:\s+(\d+) kB", status))
    assert pipeline.stop("capture") == 0
    lines = [json.loads(line) for line in pipeline.output("capture").splitlines() if line[0] == "{"]
    begun = [line["timestamp"] for line in lines if line["event"] == "streaming"][-1]
    seconds = last - datetime.fromisoformat(begun).timestamp()
    return seconds, peak, usage.user + usage.system


def run(rows=300_000):
    with tempfile.TemporaryDirectory() as folder, open_stack(Path(folder) / "stack") as stack:
        conninfo = stack.postgres.create_database("bench")
        with psycopg.connect(**conninfo, autocommit=True) as connection:
            connection.execute(TABLE)
            pipelines = [
                pipeline_of(Path(folder) / str(number), stack, conninfo, number)
                for number in range(ROUNDS)
            ]
            for pipeline in pipelines:
                pipeline.start_capture()
                pipeline.wait_captured()
                assert pipeline.stop("capture") == 0
            for number in range(ROUNDS):
                connection.execute(
                    f"select pg_copy_logical_replication_slot('bench_{number}', 'raw_{number}')"
                )
            for first in range(0, rows, TRANSACTION):
                statement = INSERT.replace("ROWS", str(TRANSACTION))
                connection.execute(statement.replace("select i,", f"select i + {first},", 1))
            ((end,),) = connection.execute("select pg_current_wal_lsn() - '0/0'").fetchall()
            connection.execute("insert into narrow (id) values (-1)")
        binaries = find_binaries().folder
        raw, ours, peaks, cpu = [], [], [], []
        for number, pipeline in enumerate(pipelines):
            raw.append(recvlogical(binaries, conninfo, f"raw_{number}", int(end)))
            seconds, peak, used = captured(pipeline, f"bench_{number}", int(end))
            ours.append(seconds)
            peaks.append(peak)
            cpu.append(used)
        for pipeline in pipelines:
            pipeline.close()
    raw_rate = rows / statistics.median(raw)
    our_rate = rows / statistics.median(ours)
    return {
        "figures": {
            "pg_recvlogical_rows_per_s": round(raw_rate),
            "capture_rows_per_s": round(our_rate),
            "capture_peak_mib": round(max(peaks)),
            "capture_cpu_us_per_row": round(statistics.median(cpu) / rows * 1e6, 1),
        },
        "ratios": {
            "capture_to_pg_recvlogical": round(
                statistics.median(r / o for r, o in zip(raw, ours, strict=True)), 2
            ),
        },
    }
