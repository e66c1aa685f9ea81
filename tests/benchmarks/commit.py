"""Commits of one changed row each, against the same commits as Spark plans large batches.

The baseline leaves adaptive execution and compiled code on, as they are for a batch of many rows.
One table of ``rows`` rows; contestants take turns, commit by commit, in one JVM, and figures are
told by quarters: of a JVM that has just started, and of one that has run for a while. CPU seconds
are those of Spark's JVM.
"""

import statistics
import time
from contextlib import nullcontext
from unittest.mock import patch

import psutil

import spark_jobs.merge
from cdc import codecs
from spark_jobs.session import jvm_pid
from tests.benchmarks.parts.applying import applying
from tests.support.loggen import Update
from tests.support.schemas import column, table_schema

COMMITS = 24
QUARTERS = 4
WIDTH = 8
SCHEMA = table_schema(
    column(1, "id", codecs.INT8, not_null=True), *((f"c{i}", codecs.TEXT) for i in range(WIDTH))
)
CONTESTANTS = ("small", "large")


def row(key, value):
    return [b"%d" % key, *[b"%d" % value] * WIDTH]


def run(rows=1_000):
    with applying(SCHEMA, (row(key, 0) for key in range(rows))) as bench:
        bench.applier.run_pass(["shop"])
        return measure(bench.applier, bench.gen, psutil.Process(jvm_pid(bench.spark)), rows)


def measure(applier, gen, jvm, rows):
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
    for number in range(COMMITS):
        key = number % rows
        for name in CONTESTANTS:
            gen.transaction(Update(SCHEMA.id, row(key, 0), row(key, number + 1)))
            seconds, cpu = -time.perf_counter(), -sum(jvm.cpu_times()[:2])
            planned = patch.object(spark_jobs.merge, "planned_for", lambda *_: nullcontext())
            with planned if name == "large" else nullcontext():
                (result,) = applier.run_pass(["shop"])
            took[name].append((seconds + time.perf_counter(), cpu + sum(jvm.cpu_times()[:2])))
            assert (result.error, result.action, result.keys) == (None, "overwrite", 1)
    return {
        "figures": {
            "table_rows": rows,
            **{
                f"{name}_{what}_by_quarter": [round(m, 2) for m in medians(took[name], i)]
                for name in CONTESTANTS
                for i, what in enumerate(("seconds", "cpu_seconds"))
            },
        },
        "ratios": {
            f"{what}_to_large_by_quarter": [
                round(ours / theirs, 2)
                for ours, theirs in zip(
                    medians(took["small"], i), medians(took["large"], i), strict=True
                )
            ]
            for i, what in enumerate(("seconds", "cpu_seconds"))
        },
    }


def medians(took, index):
    """Of each quarter of the commits."""
    size = COMMITS // QUARTERS
    return [
        statistics.median(one[index] for one in took[i * size : (i + 1) * size])
        for i in range(QUARTERS)
    ]
