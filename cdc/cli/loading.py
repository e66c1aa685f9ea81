"""How far a load is, as the daemon knows it: control only tells when a load has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cdc.errors import CdcError

if TYPE_CHECKING:
    from cdc.config import Config


def load_progress(children: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each child that loads: ``shop.public.orders: 1,200 of about 5,000 rows copied``.

    Args:
        children: Of the daemon's status.
    """
    for child in children:
        details = child.get("details") or {}
        if child.get("state") != "loading" or "rows" not in details:
            continue
        total = details.get("total")
        of = f" of about {total:,} ({_share(details['rows'], total)})" if total else ""
        yield f"{details.get('table')}: {details['rows']:,}{of} rows copied"


def loading_now(config: Config) -> list[str]:
    """The lines of the running daemon; none when there is none, or it does not answer."""
    from cdc.daemon.client import daemon_status
    from cdc.daemon.record import running_daemon

    with contextlib.suppress(CdcError):
        daemon = running_daemon(config)
        if daemon is not None:
            return list(load_progress(daemon_status(daemon)["children"]))
    return []


def _share(rows: int, total: int) -> str:
    # The total is an estimate; the end of a load is told by its state, not by this.
    return f"{min(99, 100 * rows // total)} %"
