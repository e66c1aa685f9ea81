"""Commits of one changed row each: written directly, and by Spark.

The baseline is Spark, that plans the commit for so little. One table of ``rows`` rows; contestants
take turns, commit by commit, in one JVM, and figures are told by quarters: of a JVM that has just
started, and of one that has run for a while. CPU seconds are those of both processes.
"""

import statistics
import time
from dataclasses import replace

import psutil

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
CONTESTANTS = ("direct", "spark")


def row(key, value):
    return [b"%d" % key, *[b"%d" % value] * WIDTH]


def run(rows=1_000):
    with applying(SCHEMA, (row(key, 0) for key in range(rows))) as bench:
        bench.applier.run_pass(["shop"])
        return measure(bench.applier, bench.gen, psutil.Process(jvm_pid(bench.spark)), rows)


def measure(applier, gen, jvm, rows):
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
    settings = {"direct": applier.settings, "spark": replace(applier.settings, most_rewritten=0)}
    for number in range(COMMITS):
        key = number % rows
        for name in CONTESTANTS:
            gen.transaction(Update(SCHEMA.id, row(key, 0), row(key, number + 1)))
            applier.settings = settings[name]
            seconds, cpu = -time.perf_counter(), -cpu_seconds(jvm)
            (result,) = applier.run_pass(["shop"])
            took[name].append((seconds + time.perf_counter(), cpu + cpu_seconds(jvm)))
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
            f"{what}_to_spark_by_quarter": [
                round(ours / theirs, 3)
                for ours, theirs in zip(
                    medians(took["direct"], i), medians(took["spark"], i), strict=True
                )
            ]
            for i, what in enumerate(("seconds", "cpu_seconds"))
        },
    }


def cpu_seconds(jvm):
    return sum(sum(process.cpu_times()[:2]) for process in (jvm, psutil.Process()))


def medians(took, index):
    """Of each quarter of the commits."""
    size = COMMITS // QUARTERS
    return [
        statistics.median(one[index] for one in took[i * size : (i + 1) * size])
        for i in range(QUARTERS)
    ]
