"""How far a load is, as its control record says, in figures and in words. Pure."""

from __future__ import annotations

from cdc.control import ControlState, LoadRecord
from cdc.names import TableId
from cdc.states import COPYING, INTENDED, REPLAYING


def loads_under_way(control: ControlState) -> dict[TableId, LoadRecord]:
    """By table, its newest load that has not ended; it need not be the one that readers use."""
    return {load.id: load for load in sorted(control.unfinished_loads(), key=lambda r: r.load)}


def chunks_done(load: LoadRecord) -> int:
    """How many of a load's chunks are in its topic."""
    return sum(last - first + 1 for first, last in load.done)


def load_words(load: LoadRecord) -> str:
    """Of a load under way: ``1,200 of about 5,000 (24 %) rows, 3 of 13 chunks are copied``."""
    if load.state == INTENDED:
        return "it has not begun"
    if load.state == REPLAYING:
        return f"all {load.rows:,} rows are copied, and the changes since then follow"
    if load.state != COPYING or not load.chunks:
        return "nothing is copied yet"
    share = share_words(load.rows, load.estimate)
    return f"{load.rows:,}{share} rows, {chunks_done(load):,} of {load.chunks:,} chunks are copied"


def share_words(rows: int, estimate: int | None) -> str:
    """`` of about 5,000 (24 %)``, or nothing if the planner has no guess."""
    if not estimate:
        return ""
    # A guess: the end of a load is told by its state, not by this.
    return f" of about {estimate:,} ({min(99, 100 * rows // estimate)} %)"
