"""What more cores would give, from what was measured on a few. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.parts.runs import Run, middle


@dataclass(frozen=True, slots=True)
class Costs:
    """What a million rows take.

    Args:
        worker: CPU seconds of the workers.
        copier: CPU seconds of the process that hands out the chunks; there is one of it.
        postgres: CPU seconds of Postgres.
        broker: CPU seconds of the broker.
        copied_bytes: From Postgres to the workers.
        sent_bytes: From the workers to the broker.
        chunks: That they come in; capture marks each in the log when it is done.
    """

    worker: float
    copier: float
    postgres: float
    broker: float
    copied_bytes: float
    sent_bytes: float
    chunks: float

    @classmethod
    def of(cls, runs: Sequence[Run], copied_bytes: float) -> Costs:
        """From runs of ours by one worker, and the bytes of a million rows in COPY."""
        millions = runs[0].rows / 1e6
        names = ("cpu", "copier_cpu", "postgres_cpu", "broker_cpu")
        worker, copier, postgres, broker = (middle(runs, name) / millions for name in names)
        sent, chunks = (middle(runs, name) / millions for name in ("sent_bytes", "chunks"))
        return cls(worker, copier, postgres, broker, copied_bytes, sent, chunks)

    @property
    def cpu(self) -> float:
        """CPU seconds of all of them."""
        return self.worker + self.copier + self.postgres + self.broker


def on_cores(costs: Costs, cores: int) -> dict[str, Any]:
    """What ``cores`` cores would give if all were as fast as those that were measured.

    ``together``: workers, Postgres and broker share them. ``workers_alone``: they are the
    workers', the servers have machines of their own, of which it says what they would need.
    ``limits``: of what does not grow with the cores: the one process that hands out the chunks;
    and a partition of a topic, whose records are appended one batch after the other, if all of
    the broker's work were done by one core.
    """
    together = cores / costs.cpu
    alone = cores / costs.worker
    limits = {"copier": 1 / costs.copier, "one_partition": 1 / costs.broker}
    first = min(limits, key=lambda name: limits[name])
    return {
        "cores": cores,
        "together_rows_per_second": _rows(together),
        "together_cores": {
            "workers": round(together * costs.worker, 1),
            "postgres": round(together * costs.postgres, 1),
            "broker": round(together * costs.broker, 1),
            "copier": round(together * costs.copier, 1),
        },
        "workers_alone_rows_per_second": _rows(alone),
        "workers_alone_needs": {
            "postgres_cores": round(alone * costs.postgres, 1),
            "broker_cores": round(alone * costs.broker, 1),
            "copier_cores": round(alone * costs.copier, 2),
            "mbit_per_second_from_postgres": round(alone * costs.copied_bytes * 8e-6),
            "mbit_per_second_to_broker": round(alone * costs.sent_bytes * 8e-6),
            "chunk_marks_per_second": round(alone * costs.chunks, 1),
        },
        "limits_rows_per_second": {name: _rows(limit) for name, limit in limits.items()},
        "limited_by": first if limits[first] < alone else "cores",
    }


def _rows(millions: float) -> int:
    return round(millions * 1e6)
