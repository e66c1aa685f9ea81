"""Apply 10 % changes to a table, against a plain MERGE of the same rows already folded.

One batch from the log to the commit: reading, folding, parsing, merging. The baseline is given
what our fold made, as Parquet files, and merges it into a copy of the table as one would write
it by hand, with deletion vectors and a literal key range.
"""

import random
import shutil
import statistics
import tempfile
import time
import uuid
from pathlib import Path

from cdc import codecs
from cdc.names import lake_folder
from spark_jobs.apply import Applier, ApplySettings
from spark_jobs.log_state import LogAddress
from spark_jobs.rebuild import rebuild_table
from spark_jobs.session import build_session, worker_session
from tests.support.loggen import Delete, Insert, LogGen, Update
from tests.support.schemas import column, table_schema
from tests.support.stack import open_stack

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
    """The baseline; returns seconds."""
    begun = time.perf_counter()
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
    return time.perf_counter() - begun


def folded_rows(session, path, before, after, target):
    """What a batch made of the keys, from the two versions of the replica around it."""
    old, new = (
        session.read.format("delta").option("versionAsOf", version).load(path)
        for version in (before, after)
    )
    written = new.join(old.select("id", "_cdc_lsn"), ["id", "_cdc_lsn"], "left_anti")
    gone = old.join(new.select("id"), "id", "left_anti")
    both = written.selectExpr("*", "false as _cdc_gone").unionByName(
        gone.selectExpr("*", "true as _cdc_gone")
    )
    both.write.mode("overwrite").parquet(target)
    return both.count()


def run(rows=1_000_000):
    rng = random.Random(1)
    count = rows // 10
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as temporary:
        folder = Path(temporary)
        stack_folder = folder / "stack"
        stack_folder.mkdir()
        with open_stack(stack_folder) as stack, LogGen(stack.bootstrap, "bench.") as gen:
            gen.create([SCHEMA], partitions=2)
            gen.load({SCHEMA.id: (row(rng, key) for key in range(rows))}, remember=False)
            spark = build_session("local[2]", "2g", {})
            address = LogAddress(stack.bootstrap, {}, "bench.")
            applier = Applier(spark, address, ApplySettings(str(folder / "lake")))
            try:
                return measure(spark, applier, gen, rng, rows, count, folder)
            finally:
                applier.close()
                spark.stop()


def measure(spark, applier, gen, rng, rows, count, folder):
    session = worker_session(spark)
    path = lake_folder(str(folder / "lake"), "shop", *SCHEMA.id)
    copy, source = str(folder / "copy"), str(folder / "folded")

    def one_pass():
        begun = time.perf_counter()
        (result,) = applier.run_pass(["shop"])
        assert result.error is None, result.error
        return time.perf_counter() - begun, result

    load_seconds, loaded = one_pass()
    shutil.copytree(path, copy)
    ours, theirs, version = [], [], loaded.version
    for number in range(ROUNDS):
        made = changes(rng, count, rows, rows + number * count)
        for start in range(0, count, TRANSACTION):
            gen.transaction(*made[start : start + TRANSACTION])
        seconds, result = one_pass()
        assert result.action == "merge", result
        ours.append(seconds)
        folded_rows(session, path, version, result.version, source)
        version = result.version
        theirs.append(by_hand(session, copy, source))
    same = session.read.format("delta").load(path)
    assert same.exceptAll(session.read.format("delta").load(copy)).count() == 0
    begun = time.perf_counter()
    rebuild_table(applier, "shop", SCHEMA.id)
    rebuild_seconds = time.perf_counter() - begun
    # The first round of each warms the JVM up.
    mine, plain = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return {
        "figures": {
            "table_rows": rows,
            "changes_per_batch": count,
            "apply_rows_per_second": round(count / mine),
            "apply_seconds": [round(s, 2) for s in ours],
            "merge_by_hand_seconds": [round(s, 2) for s in theirs],
            "first_load_rows_per_second": round(rows / load_seconds),
            "rebuild_rows_per_second": round(rows / rebuild_seconds),
        },
        "ratios": {"apply_to_merge_by_hand": round(mine / plain, 2)},
    }
