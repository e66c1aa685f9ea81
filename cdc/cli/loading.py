"""How fast loads are, as the daemon knows it: control tells how far they are, not how fast."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from cdc.errors import CdcError

if TYPE_CHECKING:
    from cdc.config import Config


def load_figures(children: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Figures of loads under way, by ``source.schema.table``.

    Args:
        children: Of the daemon's status.

    Returns:
        ``number`` (of the load), ``rows``, ``chunks_done``, ``chunks``, and where they are known
        ``rows_estimate``, ``rows_per_second`` and ``seconds_left``.
    """
    return {
        table: figures
        for child in children
        for table, figures in (child.get("loads") or {}).items()
    }


def speed_words(config: Config, table: str) -> str | None:
    """``1,200 rows per second, about 30 s left``; None without a daemon that knows."""
    from cdc.daemon.client import daemon_status
    from cdc.daemon.record import running_daemon

    with contextlib.suppress(CdcError):
        daemon = running_daemon(config)
        if daemon is not None:
            figures = load_figures(daemon_status(daemon)["children"]).get(table, {})
            if "rows_per_second" in figures:
                words = f"{figures['rows_per_second']:,.0f} rows per second"
                left = figures.get("seconds_left")
                return words if left is None else f"{words}, about {left:,.0f} s left"
    return None


def add_figures(sources: dict[str, Any], children: list[dict[str, Any]]) -> None:
    """Lay the daemon's newer figures over the loads of a status, in place."""
    found = load_figures(children)
    for name, source in sources.items():
        for table, status in source["tables"].items():
            figures = found.get(f"{name}.{table}")
            loading = status.get("loading")
            # Control may be ahead of the daemon's last report, or behind.
            if figures is None or loading is None or figures.get("number") != loading["load"]:
                continue
            loading["rows"] = max(loading["rows"], int(figures["rows"]))
            for figure in ("rows_per_second", "seconds_left"):
                if figure in figures:
                    loading[figure] = round(figures[figure], 1)
