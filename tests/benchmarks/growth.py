"""Loads of one table while it grows: the time of a row must not grow with the table.

The table of the snapshot benchmark at a twentieth of the rows, at a quarter, and whole; smaller
ones are loaded more often.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.parts import firenibble
from tests.benchmarks.parts.loads import load
from tests.benchmarks.parts.runs import Run, figures, ratio
from tests.benchmarks.parts.servers import own_servers

#: Of all rows, and how often they are loaded.
STEPS = ((20, 3), (4, 2), (1, 1))


def run(rows: int = 20_000_000, workers: int = 1) -> dict[str, Any]:
    """Measure loads by ``workers`` workers."""
    runs: dict[int, list[Run]] = {}
    size = 0
    with own_servers() as servers:
        for share, times in STEPS:
            firenibble.grow(servers.conninfo, size, rows // share)
            if not runs:
                # The broker's code is compiled while it runs: some chunks do not count.
                load(servers, firenibble.NAME, workers, chunks=8)
            size = rows // share
            runs[size] = [load(servers, firenibble.NAME, workers) for _ in range(times)]
            assert {one.rows for one in runs[size]} == {size}
    smallest = runs[rows // STEPS[0][0]]
    return {
        "figures": {f"rows_{size}": figures(some) for size, some in runs.items()},
        "ratios": {
            f"{name}_of_{size}_rows": ratio(some, smallest, name)
            for name in ("seconds_per_row", "cpu_per_row")
            for size, some in runs.items()
        },
    }
