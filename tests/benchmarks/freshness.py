"""How long after its commit a change is seen by ``cdc query``, the query's own time included.

The whole way: Postgres, capture, Kafka, a cold ``cdc query`` process. The same with a process
that has the modules loaded, and against a cold query of data that has been there long.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from cdc.config import load_config
from cdc.names import TableId
from cdc.query.run import run_query
from tests.support.pipeline import Pipeline
from tests.support.stack import open_stack

SQL = "select n from shop.public.counter where id = 1"


def run(rows: int = 20) -> dict[str, Any]:
    """Figures in seconds; ``rows`` changes are followed per contestant."""
    with tempfile.TemporaryDirectory() as folder, open_stack(Path(folder) / "stack") as stack:
        conninfo = stack.postgres.create_database("freshness")
        with psycopg.connect(**conninfo, autocommit=True) as source:
            source.execute("create table counter (id int primary key, n bigint)")
            source.execute("insert into counter select g, 0 from generate_series(1, 1000) g")
            pipeline = Pipeline(
                Path(folder),
                stack.bootstrap,
                conninfo,
                [TableId("public", "counter")],
                prefix=f"b{uuid.uuid4().hex[:8]}.",
            )
            with pipeline:
                pipeline.start_capture()
                pipeline.wait_captured()
                return measure(pipeline, source, rows)


def measure(pipeline: Any, source: Any, rows: int) -> dict[str, Any]:
    config = load_config(pipeline.config_path)

    def cold() -> int:
        answer = json.loads(pipeline.cli("query", "--json", SQL).stdout)
        return int(answer["result"]["rows"][0][0])

    def warm() -> int:
        return int(run_query(config, SQL).rows[0][0])

    cold(), warm()
    figures: dict[str, Any] = {}
    for name, query in (("cold", cold), ("warm", warm)):
        alone = []
        for _ in range(rows):
            began = time.perf_counter()
            query()
            alone.append(time.perf_counter() - began)
        seen = [follow(source, query) for _ in range(rows)]
        figures[f"{name}_query_alone_s"] = statistics.median(alone)
        figures[f"{name}_commit_to_seen_s"] = statistics.median(seen)
        figures[f"{name}_commit_to_seen_max_s"] = max(seen)
    return {
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "ratios": {
            "seen_to_query_alone_cold": round(
                figures["cold_commit_to_seen_s"] / figures["cold_query_alone_s"], 2
            )
        },
    }


def follow(source: Any, query: Callable[[], int]) -> float:
    """Seconds from a commit until an answer holds it."""
    [(value,)] = source.execute("update counter set n = n + 1 where id = 1 returning n").fetchall()
    began = time.perf_counter()
    while query() < value:
        pass
    return time.perf_counter() - began
