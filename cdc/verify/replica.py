"""The replica alone, as other engines read it, pinned to the position that is compared.

A replica stands at the frontier of its last merge, hardly ever at the snapshot's position. But if
the log holds nothing of the table between the two, its content is that of either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cdc.errors import QueryError
from cdc.log.reader import LogReader
from cdc.position import Position, format_lsn
from cdc.query.replica_reader import OpenReplica
from cdc.query.source_view import TablePlan, read_tails
from cdc.query.tail import Tail

_POLL_S: Final = 0.5

#: The replica as it is now; a plan of its tail up to a position at or above its own.
OpenAnew = Callable[[], OpenReplica | None]
Plan = Callable[[OpenReplica, Position], TablePlan]


def pin_replica(
    name: str,
    open_anew: OpenAnew,
    plan: Plan,
    reader: LogReader,
    position: Position,
    wait_s: float,
) -> tuple[TablePlan, Tail]:
    """Wait for a replica whose content is the log's at a position.

    Args:
        name: Of the table, for messages.
        open_anew: Gives the replica as it is now.
        plan: Plans the table.
        reader: Of the log.
        position: That it must stand for.
        wait_s: How long to wait for apply, seconds.

    Returns:
        The plan with the replica, and a tail that is empty.

    Raises:
        QueryError: ``replica_not_at_position``.
    """
    deadline = time.monotonic() + wait_s
    while True:
        replica = open_anew()
        if replica is None:
            between = "it has not been written yet"
        else:
            low, high = sorted((replica.position, position))
            # What it says of offsets is of its own position.
            ends = replica.ends if low == replica.position else None
            planned = plan(replace(replica, position=low, ends=ends), high)
            tail = read_tails(reader, [planned])[planned.name]
            if planned.replica is None:
                between = "it is of an older load of the table"
            elif tail.keys or not tail.keeps_base:
                changed = f"{len(tail.keys)} keys changed" if tail.keys else "it was truncated"
                between = f"it stands at {format_lsn(replica.position.lsn)}, and {changed} between"
            elif planned.schema.valid_from >= position:
                between = f"it stands at {format_lsn(replica.position.lsn)}, with other columns"
            else:
                return replace(planned, replica=replica, frontier=position), tail
        if time.monotonic() > deadline:
            raise QueryError(
                "replica_not_at_position",
                "the replica alone has no state that can be compared with the source at "
                f"{format_lsn(position.lsn)}: {between}",
                table=name,
                position=str(position),
                remedy="is apply running? cdc status; while the table changes without a pause, "
                "verify without --replica: that reads the replica and the log behind it",
            )
        time.sleep(_POLL_S)
