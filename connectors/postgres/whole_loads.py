"""Loads of tables without a key: copied in one transaction, or begun anew (decision 5)."""

from __future__ import annotations

from typing import Final

from cdc.errors import ConfigError, SourceError
from cdc.states import COPYING
from connectors.postgres.load_state import Load

NOT_RESUMED: Final = "load_not_resumed"


def not_resumed(load: Load, name: str) -> SourceError | None:
    """Why a load that an earlier capture began cannot go on, if it cannot.

    Args:
        load: As control has it.
        name: Of the table, for people.
    """
    record = load.record
    if load.schema is None or not load.schema.counted:
        return None
    # One that is paused has not begun to copy, see ``check_pausable``.
    if record.state != COPYING or record.paused:
        return None
    return SourceError(
        NOT_RESUMED,
        "the table has no key, and capture ended while it was copied: what its topic has cannot "
        "be told from what would be copied again",
        table=name,
        remedy="a new load of the table begins by itself",
    )


def check_pausable(load: Load, name: str) -> None:
    """Refuse to pause a load that could not go on afterwards.

    Raises:
        ConfigError: ``load_not_pausable``.
    """
    record = load.record
    copying = record.state == COPYING and load.clear and not record.paused
    if copying and load.schema is not None and load.schema.counted:
        raise ConfigError(
            "load_not_pausable",
            "the table has no key: it is copied in one transaction, which cannot be paused",
            table=name,
            remedy="cancel the load, or let it end",
        )
