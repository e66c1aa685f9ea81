"""``cdc query`` over a replica and a small tail, against plain DuckDB over the same Parquet.

Both are cold processes, as a user starts them; plain DuckDB knows no position, no tail and no
lock. Where our time goes is shown by phase, from a warm process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from cdc import codecs
from cdc.config import load_config
from cdc.query.run import run_query
from tests.support.loggen import Insert, LogGen, Update
from tests.support.replicas import write_replica
from tests.support.schemas import column, table_schema
from tests.support.stack import open_stack

ROUNDS = 9
TAIL = 200
ORDERS = table_schema(
    column(1, "id", codecs.INT8, not_null=True),
    column(2, "customer_id", codecs.INT4),
    column(3, "total", codecs.NUMERIC, type="numeric(10,2)"),
    column(4, "note", codecs.TEXT),
)
SQL = "select customer_id, count(*), sum(total) from shop.public.orders group by 1 order by 1"


def order(i: int) -> list[object]:
    return [b"%d" % i, b"%d" % (i % 10), b"%d.25" % (i % 100), b"note %d" % i]


def cold(*arguments: str) -> tuple[float, str]:
    """Seconds of a whole process, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return time.perf_counter() - began, done.stdout


def run(rows: int = 10_000) -> dict[str, Any]:
    """Figures in seconds, medians of ``ROUNDS``."""
    with tempfile.TemporaryDirectory() as folder, open_stack(Path(folder) / "stack") as stack:
        config_path = Path(folder) / "cdc.yaml"
        prefix = f"b{uuid.uuid4().hex[:8]}."
        config_path.write_text(
            f"""\
project: bench
log: {{bootstrap_servers: "{stack.bootstrap}", topic_prefix: "{prefix}"}}
lake: {{path: ./lake}}
sources:
  shop: {{kind: postgres, host: localhost, database: shop, user: nobody, tables: [public.orders]}}
"""
        )
        with LogGen(stack.bootstrap, prefix) as gen:
            gen.create([ORDERS])
            gen.load({ORDERS.id: [order(i) for i in range(rows)]})
            table = gen.tables[ORDERS.id]
            lake = Path(folder) / "lake"
            replica = write_replica(
                lake, "shop", ORDERS, gen.rows[ORDERS.id], gen.position, table.topic_id,
                ends=gen.ends[table.topic],
            )  # fmt: skip
            gen.transaction(
                *(Insert(ORDERS.id, order(rows + i)) for i in range(TAIL // 2)),
                *(Update(ORDERS.id, order(i), order(i)) for i in range(TAIL // 2)),
            )
            return measure(config_path, replica)


def measure(config_path: Path, replica: str) -> dict[str, Any]:
    plain = SQL.replace("shop.public.orders", f"read_parquet('{replica}/*.parquet')")
    ours, duck, empty = [], [], []
    for _ in range(ROUNDS):
        seconds, answer = cold("-m", "cdc.cli.main", "-c", str(config_path), "query", "--json", SQL)
        assert len(json.loads(answer)["result"]["rows"]) == 10
        ours.append(seconds)
        duck.append(cold("-c", f"import duckdb; print(duckdb.execute({plain!r}).fetchall())")[0])
        empty.append(cold("-c", "pass")[0])
    config = load_config(config_path)
    run_query(config, SQL)
    phases = [run_query(config, SQL).seconds for _ in range(ROUNDS)]
    figures: dict[str, float] = {
        "cdc_query_process_s": statistics.median(ours),
        "plain_duckdb_process_s": statistics.median(duck),
        "python_alone_s": statistics.median(empty),
    }
    for phase in phases[0]:
        figures[f"warm_{phase}_s"] = statistics.median(p[phase] for p in phases)
    return {
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "ratios": {
            "cdc_query_to_plain_duckdb": round(
                figures["cdc_query_process_s"] / figures["plain_duckdb_process_s"], 2
            )
        },
    }
