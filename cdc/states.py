"""States of tables and loads, and which may follow which. Pure.

A table that is loaded for the first time goes through the states of its load. A table that is
Ready stays so while a later load of it is under way, until the switch to that load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Added: in the publication, or about to be. Snapshotting: chunks are copied while its events
# go to the spool. CatchingUp: the spool is replayed. Ready: the log is complete from ready_from
# on. Errored: it stands at last_good, with reason and remedy, until a new load makes it Ready.
ADDED, SNAPSHOTTING, CATCHING_UP = "Added", "Snapshotting", "CatchingUp"
READY, ERRORED, REMOVED = "Ready", "Errored", "Removed"

#: Each state of a table, and the states that may come after it.
TABLE_TRANSITIONS: Final[Mapping[str, frozenset[str]]] = {
    ADDED: frozenset({SNAPSHOTTING, ERRORED, REMOVED}),
    SNAPSHOTTING: frozenset({ADDED, CATCHING_UP, ERRORED, REMOVED}),
    CATCHING_UP: frozenset({ADDED, READY, ERRORED, REMOVED}),
    READY: frozenset({ADDED, ERRORED, REMOVED}),
    ERRORED: frozenset({ADDED, READY, REMOVED}),
    REMOVED: frozenset({ADDED, ERRORED}),
}

# intended: written before anything of it exists, so that a start which finds it knows what to
# clean up. copying: events are spooled from the consistent point on, and chunks are copied.
# replaying: all chunks are in. done: its topic is complete. abandoned: its topics are removed.
INTENDED, COPYING, REPLAYING = "intended", "copying", "replaying"
DONE, ABANDONED = "done", "abandoned"

# What an Errored table that was set aside, while its source goes on, waits for: a new load begins
# by itself as soon as the table can be captured; or somebody has to ask for it.
RELOADS, WAITS = "reload", "wait"

#: Each state of a load, and the states that may come after it.
LOAD_TRANSITIONS: Final[Mapping[str, frozenset[str]]] = {
    INTENDED: frozenset({COPYING, ABANDONED}),
    COPYING: frozenset({REPLAYING, ABANDONED}),
    REPLAYING: frozenset({DONE, ABANDONED}),
    DONE: frozenset(),
    ABANDONED: frozenset(),
}

#: The state of a table that was never Ready, by the state of its newest load.
TABLE_STATE_OF_LOAD: Final[Mapping[str, str]] = {
    INTENDED: ADDED,
    COPYING: SNAPSHOTTING,
    REPLAYING: CATCHING_UP,
    DONE: READY,
}


def check_transition(transitions: Mapping[str, frozenset[str]], before: str, after: str) -> None:
    """Staying in a state is allowed; a step that the table does not list is a bug of ours."""
    if after != before and after not in transitions[before]:
        raise RuntimeError(f"no way leads from {before} to {after}")
