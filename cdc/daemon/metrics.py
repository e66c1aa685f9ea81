"""Prometheus metrics: what the children report, and how they fare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cdc.daemon.child import ChildView

#: Figures that only grow in a child's life; a restart begins at 0, which Prometheus expects.
_COUNTERS = frozenset(
    {"batches", "bytes", "changes", "commits", "reconnects", "records", "rows", "transactions"}
)
#: Begin the names of gauges by table.
_STEMS = {"replicas": "cdc_replica_", "loads": "cdc_load_"}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]")


class ChildrenCollector(Collector):
    """Makes the metrics at the moment they are asked for.

    A capture child's figure ``lag_bytes`` becomes ``cdc_source_lag_bytes{source=…}``; figures by
    table get a label ``table``, and its ``loads`` become ``cdc_load_…{source=…,table=…}``.
    Apply's ``replicas`` become ``cdc_replica_…{table=…}``, with a label ``column`` where a figure
    is told by column; its other figures ``cdc_apply_…``.
    """

    def __init__(self, views: Callable[[], list[ChildView]], ready: Callable[[], bool]) -> None:
        self._views = views
        self._ready = ready

    def describe(self) -> Iterable[Metric]:
        """Nothing: names come with the children's reports."""
        return []

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        families: dict[str, Metric] = {}
        _add(families, "cdc_ready", {}, 1.0 if self._ready() else 0.0)
        for view in self._views():
            child = {"child": view.name}
            _add(families, "cdc_child_up", child, 1.0 if view.phase == "running" else 0.0)
            _add(families, "cdc_child_ready", child, 1.0 if view.ready else 0.0)
            _add(families, "cdc_child_restarts", child, float(view.restarts), counter=True)
            if view.source is not None:
                labels = {"source": view.source, "state": view.state}
                _add(families, "cdc_source_state", labels, 1.0)
            for name, value in (view.metrics or {}).items():
                _add_reported(families, view, name, value)
        return families.values()


def registry(views: Callable[[], list[ChildView]], ready: Callable[[], bool]) -> CollectorRegistry:
    """A registry with the children's metrics only."""
    made = CollectorRegistry(auto_describe=False)
    made.register(ChildrenCollector(views, ready))
    return made


def _add_reported(families: dict[str, Metric], view: ChildView, name: str, value: Any) -> None:
    prefix = "cdc_source_" if view.source is not None else "cdc_apply_"
    labels = {"source": view.source} if view.source is not None else {}
    if _is_number(value):
        _add(families, prefix + name, labels, float(value), counter=name in _COUNTERS)
        return
    if not isinstance(value, dict):
        return
    for table, inner in value.items():
        figures = inner if isinstance(inner, dict) else {None: inner}
        for figure, number in figures.items():
            if isinstance(number, dict):
                _add_by_column(families, name, figure, {**labels, "table": str(table)}, number)
            if not _is_number(number):
                continue
            stem = _STEMS.get(name, f"{prefix}{name}_")
            full = f"{stem}{figure}" if figure is not None else f"{prefix}{name}"
            word = figure if figure is not None else name
            _add(
                families,
                full,
                {**labels, "table": str(table)},
                float(number),
                # What replicas are behind by, and what a load has, goes up and down.
                counter=word in _COUNTERS and name not in _STEMS,
            )


def _add_by_column(
    families: dict[str, Metric],
    name: str,
    figure: str | None,
    labels: dict[str, Any],
    counts: dict[str, Any],
) -> None:
    """Totals of a table's columns."""
    full = f"{_STEMS.get(name, f'cdc_{name}_')}{figure}"
    for column, count in counts.items():
        if _is_number(count):
            _add(families, full, {**labels, "column": str(column)}, float(count), counter=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _add(
    families: dict[str, Metric],
    name: str,
    labels: dict[str, Any],
    value: float,
    *,
    counter: bool = False,
) -> None:
    name = _NOT_IN_NAMES.sub("_", name.lower())
    # One family holds samples with the same labels only.
    family = families.get(name)
    if family is None:
        kind = CounterMetricFamily if counter else GaugeMetricFamily
        family = kind(name, name.removeprefix("cdc_").replace("_", " "), labels=list(labels))
        families[name] = family
    suffix = "_total" if counter else ""
    family.add_sample(name + suffix, {key: str(text) for key, text in labels.items()}, value)
