"""A load by our workers against the snapshot of a peer, of the same rows on the same servers.

The table has 16 columns (parts/firenibble.py); its rows go to a topic of one partition, with
acks=all. One worker and several are measured by turns, and with ``--peer DIR`` the peer, by its
own harness in that folder, whose servers are then used for all. Both are timed from the first
record on, ours until the last chunk is acknowledged, the peer until its last record is made; what
came before is told apart. ``copy`` is COPY into nothing and ``encode`` a worker's work without
Kafka, both in this process.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from cdc.batch_encoder import BatchEncoder
from cdc.envelope import RowEncoder, TransactionFields
from cdc.load import ChunkPlan
from cdc.schema import TableSchema
from snapshots.copytext import parse_columns
from snapshots.source import ChunkCopy, Connection, open_session
from tests.benchmarks.parts import firenibble
from tests.benchmarks.parts.cores import Costs, on_cores
from tests.benchmarks.parts.loads import load, planned
from tests.benchmarks.parts.peer import Peer, running_peer
from tests.benchmarks.parts.runs import Run, figures, middle, ratio
from tests.benchmarks.parts.servers import Servers, own_servers
from tests.support.export import copy_settings

ROUNDS = 3
CORES = 16
_WHOLE = ChunkPlan.whole(1, 1)


def run(rows: int = 1_000_000, workers: int = 2, peer: str | None = None) -> dict[str, Any]:
    """Measure; the table is made first."""
    if peer is None:
        with own_servers() as servers:
            return measure(servers, None, rows, workers)
    with running_peer(Path(peer)) as harness:
        return measure(harness.servers, harness, rows, workers)


def measure(servers: Servers, peer: Peer | None, rows: int, workers: int) -> dict[str, Any]:
    firenibble.grow(servers.conninfo, 0, rows)
    counts = sorted({1, workers})
    schema = planned(servers, firenibble.NAME).schema
    # The broker's code is compiled while it runs: some chunks do not count.
    load(servers, firenibble.NAME, 1, chunks=2)
    runs: dict[str, list[Run]] = defaultdict(list)
    with closing(open_session(servers.conninfo, "bench")) as session:
        for _ in range(ROUNDS):
            runs["copy"].append(timed(copied, session, schema))
            runs["encode"].append(timed(encoded, session, schema, servers))
            for count in counts:
                runs[f"workers_{count}"].append(load(servers, firenibble.NAME, count))
            if peer is not None:
                runs["peer"].append(peer.snapshot(rows))
    assert all(one.rows == rows for some in runs.values() for one in some)
    ours, more = runs["workers_1"], runs[f"workers_{counts[-1]}"]
    costs = Costs.of(ours, copied_bytes=middle(runs["copy"], "received_bytes") / rows * 1e6)
    cores = os.cpu_count() or 1
    return {
        "figures": {
            **{name: figures(some) for name, some in runs.items()},
            # How far the sum of the CPU seconds foretells what several workers do.
            "foretold_rows_per_second_here": round(cores / costs.cpu * 1e6),
            "cores_here": cores,
            f"on_{CORES}_cores": on_cores(costs, CORES),
        },
        "ratios": {
            f"workers_{counts[-1]}_to_1": ratio(more, ours, "rows_per_second"),
            "to_copy": ratio(ours, runs["copy"], "rows_per_second"),
            **({"to_peer": to_peer(ours, runs["peer"])} if peer else {}),
        },
    }


def to_peer(ours: list[Run], peers: list[Run]) -> dict[str, float]:
    """One worker of ours to the peer: more rows per second and less of the others are better."""
    return {
        name: ratio(ours, peers, name) for name in ("rows_per_second", "cpu_per_row", "peak_bytes")
    }


def copied(session: Connection, schema: TableSchema) -> tuple[int, int]:
    """Rows and bytes of COPY."""
    rows, size = 0, 0
    for block in ChunkCopy(session, schema, _WHOLE, 0).blocks():
        rows += block.count(b"\n")
        size += len(block)
    return rows, size


def encoded(session: Connection, schema: TableSchema, servers: Servers) -> tuple[int, int]:
    """COPY and what a worker makes of it; rows and bytes of COPY."""
    fields = TransactionFields(1, 1, None, 1, 1, snapshot=True)
    origin = copy_settings(servers.bootstrap, servers.conninfo).origin
    encoder = BatchEncoder(RowEncoder(schema, origin))
    rows, size = 0, 0
    for block in ChunkCopy(session, schema, _WHOLE, 0).blocks():
        batch = parse_columns(block, len(schema.columns))
        size += len(block)
        # As the worker does it: what is held any longer is pushed out of the caches.
        del block
        keys, values = encoder.snapshot_rows(batch, fields)
        rows += len(values)
        del batch, keys, values
    return rows, size


def timed(work: Callable[..., tuple[int, int]], *arguments: Any) -> Run:
    seconds, cpu = -time.perf_counter(), -time.process_time()
    rows, size = work(*arguments)
    return Run(
        rows=rows,
        seconds=seconds + time.perf_counter(),
        cpu=cpu + time.process_time(),
        received_bytes=size,
    )
