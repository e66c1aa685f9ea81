"""What one run of a contestant took, and the figures of several. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """One run; None is what was not measured.

    Args:
        rows: That were copied.
        seconds: Of the clock, without ``startup_seconds`` where that was measured.
        cpu: CPU seconds of the contestant itself: of all workers, with their start.
        copier_cpu: Those of the process that hands out the chunks.
        postgres_cpu: Those of Postgres.
        broker_cpu: Those of the broker.
        peak_bytes: Most resident memory, of one worker.
        received_bytes: From Postgres.
        sent_bytes: To the broker, compressed.
        chunks: That a load of ours was cut into.
        startup_seconds: Before ``seconds``, up to the first record.
        startup_cpu: Before ``cpu``.
    """

    rows: int
    seconds: float
    cpu: float
    copier_cpu: float | None = None
    postgres_cpu: float | None = None
    broker_cpu: float | None = None
    peak_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    chunks: int | None = None
    startup_seconds: float | None = None
    startup_cpu: float | None = None

    @property
    def rows_per_second(self) -> float:
        """Of the clock's seconds."""
        return self.rows / self.seconds

    @property
    def seconds_per_row(self) -> float:
        """Of the clock's seconds."""
        return self.seconds / self.rows

    @property
    def cpu_per_row(self) -> float:
        """CPU seconds of the contestant itself."""
        return self.cpu / self.rows


def middle(runs: Sequence[Run], name: str) -> float:
    """The median of a field or property that was measured in all runs."""
    values: list[float] = [getattr(run, name) for run in runs]
    return statistics.median(values)


def ratio(runs: Sequence[Run], others: Sequence[Run], name: str) -> float:
    """Between the medians."""
    return round(middle(runs, name) / middle(others, name), 3)


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians, the spread of the rates, and every run's CPU seconds; sizes in MiB or bytes."""
    rates = [run.rows_per_second for run in runs]
    found: dict[str, Any] = {
        "rows_per_second": round(statistics.median(rates)),
        "spread": [round(min(rates)), round(max(rates))],
        "cpu_seconds": [round(run.cpu, 2) for run in runs],
        "cpu_seconds_per_million_rows": round(middle(runs, "cpu_per_row") * 1e6, 2),
    }
    rows = runs[0].rows
    for name in ("postgres_cpu", "broker_cpu", "copier_cpu"):
        if getattr(runs[0], name) is not None:
            found[f"{name}_seconds_per_million_rows"] = round(middle(runs, name) / rows * 1e6, 2)
    for name in ("received_bytes", "sent_bytes"):
        if getattr(runs[0], name) is not None:
            found[f"{name}_per_row"] = round(middle(runs, name) / rows, 1)
    for name in ("chunks", "startup_seconds", "startup_cpu"):
        if getattr(runs[0], name) is not None:
            found[name] = round(middle(runs, name), 2)
    if runs[0].peak_bytes is not None:
        found["peak_mib"] = round(max(run.peak_bytes or 0 for run in runs) / 2**20)
    return found
