"""Apply 10 % changes to a table, against a plain MERGE of the same rows already folded.

One batch from the log to the commit: reading, folding, parsing, merging. The baseline is given
what our fold made, as Parquet files, and merges it into a copy of the table as one would write
it by hand, with deletion vectors and a literal key range. In the end both tables are equal.
CPU seconds are those of this process, the broker and Spark's JVM; with other work on the
machine they say more than the clock.
"""

import random
import shutil
import statistics
import time
import uuid
from contextlib import contextmanager
from unittest.mock import patch

import psutil

import spark_jobs.apply
from cdc import codecs
from cdc.names import lake_folder
from spark_jobs.merge import write_batch
from spark_jobs.rebuild import rebuild_table
from spark_jobs.session import worker_session
from tests.benchmarks.parts.applying import applying
from tests.support.loggen import Delete, Insert, Update
from tests.support.schemas import column, table_schema

ROUNDS = 4
TRANSACTION = 1000
SCHEMA = table_schema(
    column(1, "id", codecs.INT8, not_null=True),
    ("customer", codecs.INT4),
    ("status", codecs.TEXT),
    ("total", codecs.FLOAT8),
    column(5, "price", codecs.NUMERIC, type="numeric(12,2)"),
    ("placed", codecs.TIMESTAMPTZ),
    ("day", codecs.DATE),
    ("paid", codecs.BOOL),
    ("note", codecs.TEXT),
    ("code", codecs.UUID),
    table="narrow",
)


def row(rng, key):
    return [
        b"%d" % key,
        b"%d" % rng.randrange(10**6),
        rng.choice((b"new", b"paid", b"sent")),
        b"%d.25" % rng.randrange(10**6),
        b"%d.%02d" % (rng.randrange(10**8), rng.randrange(100)),
        b"2013-%02d-%02d 10:00:00.123+00" % (rng.randrange(1, 13), rng.randrange(1, 29)),
        b"2013-01-%02d" % rng.randrange(1, 32),
        rng.choice((b"t", b"f", None)),
        b"a note of some words, number %d" % rng.randrange(10**9),
        str(uuid.UUID(int=rng.getrandbits(128))).encode(),
    ]


def changes(rng, count, rows, next_key):
    """Nine updates of random keys to one insert and, now and then, a delete."""
    made: list[object] = []
    for number in range(count):
        kind = number % 20
        if kind < 2:
            made.append(Insert(SCHEMA.id, row(rng, next_key + number)))
        elif kind == 2:
            made.append(Delete(SCHEMA.id, row(rng, rng.randrange(rows))))
        else:
            new = row(rng, rng.randrange(rows))
            made.append(Update(SCHEMA.id, new, new))
    return made


def by_hand(session, copy, source):
    """The baseline."""
    frame = session.read.parquet(source)
    low, high = frame.selectExpr("min(id)", "max(id)").first()
    frame.createOrReplaceTempView("folded")
    names = [*SCHEMA.column_names, "_cdc_lsn"]
    session.sql(
        f"MERGE INTO delta.`{copy}` t USING folded s"
        f" ON t.id = s.id AND t.id BETWEEN {low} AND {high}"
        " WHEN MATCHED AND s._cdc_gone THEN DELETE"
        f" WHEN MATCHED THEN UPDATE SET {', '.join(f't.{n} = s.{n}' for n in names)}"
        f" WHEN NOT MATCHED AND NOT s._cdc_gone THEN INSERT ({', '.join(names)})"
        f" VALUES ({', '.join('s.' + n for n in names)})"
    )


class Clock:
    """Wall and CPU seconds of a block, without what is done while it is stopped."""

    def __init__(self):
        self.processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self.processes = [p for p in self.processes if p.name() in ("java", "python3", "python")]

    def now(self):
        cpu = sum(sum(p.cpu_times()[:2]) for p in self.processes if p.is_running())
        return time.perf_counter(), cpu

    def __enter__(self):
        self.wall, self.cpu = (-value for value in self.now())
        return self

    def __exit__(self, *exc):
        wall, cpu = self.now()
        self.wall += wall
        self.cpu += cpu

    @contextmanager
    def stopped(self):
        wall, cpu = self.now()
        yield
        now_wall, now_cpu = self.now()
        self.wall -= now_wall - wall
        self.cpu -= now_cpu - cpu


def run(rows=1_000_000):
    rng = random.Random(1)
    with applying(SCHEMA, (row(rng, key) for key in range(rows)), partitions=2) as bench:
        return measure(bench, rng, rows, rows // 10)


def measure(bench, rng, rows, count):
    applier, gen, session = bench.applier, bench.gen, worker_session(bench.spark)
    path = lake_folder(bench.lake, "shop", *SCHEMA.id)
    copy, source = str(bench.folder / "copy"), str(bench.folder / "folded")

    def one_pass():
        with Clock() as clock:

            def keeping(session, replica, layout, batch, commit, **options):
                folded = batch.frame
                with clock.stopped():
                    folded.write.mode("overwrite").parquet(source)
                return write_batch(session, replica, layout, batch, commit, **options)

            with patch.object(spark_jobs.apply, "write_batch", keeping if loaded else write_batch):
                (result,) = applier.run_pass(["shop"])
        assert result.error is None, result.error
        return clock, result

    loaded = False
    load, _ = one_pass()
    loaded = True
    shutil.copytree(path, copy)
    ours, theirs = [], []
    for number in range(ROUNDS):
        made = changes(rng, count, rows, rows + number * count)
        for start in range(0, count, TRANSACTION):
            gen.transaction(*made[start : start + TRANSACTION])
        clock, result = one_pass()
        assert result.action == "merge", result
        ours.append(clock)
        with Clock() as clock:
            by_hand(session, copy, source)
        theirs.append(clock)
    same = session.read.format("delta").load(path)
    assert same.count() == session.read.format("delta").load(copy).count()
    assert same.exceptAll(session.read.format("delta").load(copy)).count() == 0
    with Clock() as rebuild:
        rebuild_table(applier, "shop", SCHEMA.id)

    def median(clocks, name):
        # The first round of each warms the JVM up.
        return statistics.median(getattr(clock, name) for clock in clocks[1:])

    return {
        "figures": {
            "table_rows": rows,
            "changes_per_batch": count,
            "apply_rows_per_second": round(count / median(ours, "wall")),
            "apply_seconds": [round(c.wall, 2) for c in ours],
            "apply_cpu_seconds": [round(c.cpu, 1) for c in ours],
            "merge_by_hand_seconds": [round(c.wall, 2) for c in theirs],
            "merge_by_hand_cpu_seconds": [round(c.cpu, 1) for c in theirs],
            "first_load_rows_per_second": round(rows / load.wall),
            "first_load_cpu_seconds": round(load.cpu, 1),
            "rebuild_rows_per_second": round(rows / rebuild.wall),
            "rebuild_cpu_seconds": round(rebuild.cpu, 1),
        },
        "ratios": {
            "apply_to_merge_by_hand": round(median(ours, "wall") / median(theirs, "wall"), 2),
            "apply_to_merge_by_hand_cpu": round(median(ours, "cpu") / median(theirs, "cpu"), 2),
        },
    }
