"""What an unfinished load left behind, taken away before the next one begins.

Only what an intent in control names is ever dropped, and a slot only if it can be ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import structlog

from cdc.control import LoadRecord
from cdc.log.admin import LogAdmin
from connectors.postgres import failures
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.client import ReplicationClient
from connectors.postgres.publication import differences, drop_publication, inspect_publication
from connectors.postgres.slot import SlotInfo, inspect_slot
from connectors.postgres.startcheck import foreign_slot

log = structlog.get_logger(__name__)

_SLOT_FREE_WITHIN_S = 10.0


def free_slot(
    connection: psycopg.Connection[Any],
    settings: CaptureSettings,
    name: str,
    check: Callable[[], None],
) -> SlotInfo | None:
    """The slot, if it is there, once nobody streams from it any more.

    A killed capture's sender ends a moment later than its process.

    Args:
        connection: As from ``client.connect_sql``.
        settings: Of the capture.
        name: The slot.
        check: Called while waiting; raises to give up.

    Raises:
        SourceRefused: ``slot_foreign``.
        SourceError: ``slot_active``, after some seconds.
    """
    deadline = time.monotonic() + _SLOT_FREE_WITHIN_S
    while True:
        slot = inspect_slot(connection, name)
        if slot is None:
            return None
        if slot.plugin != "pgoutput" or slot.database != settings.database:
            raise foreign_slot(slot)
        if not slot.active:
            return slot
        if time.monotonic() > deadline:
            raise failures.slot_active(name, slot.active_pid)
        check()
        time.sleep(0.1)


def check_leftovers(
    connection: psycopg.Connection[Any],
    settings: CaptureSettings,
    unfinished: Sequence[LoadRecord],
    check: Callable[[], None],
) -> None:
    """Refuse what cannot be ours, and drop a publication of ours that no longer fits cdc.yaml.

    With patterns it never fits: what matches them may have changed.

    Raises:
        CdcError: As ``free_slot``.
    """
    for slot in _slots(unfinished):
        free_slot(connection, settings, slot, check)
    if settings.manage_publication:
        publication = inspect_publication(connection, settings.publication)
        fits = publication is not None and not (
            settings.patterns or differences(publication, settings.tables, managed=True)
        )
        if publication is not None and not fits:
            log.info("dropping the publication of an unfinished load", name=publication.name)
            drop_publication(connection, publication.name)


def remove_leftovers(
    connection: psycopg.Connection[Any],
    client: ReplicationClient,
    admin: LogAdmin,
    settings: CaptureSettings,
    unfinished: Sequence[LoadRecord],
    check: Callable[[], None],
) -> None:
    """Drop the slots and topics that these loads name.

    Raises:
        CdcError: As ``free_slot``; the log's errors.
    """
    topics = sorted({load.topic for load in unfinished})
    slots = _slots(unfinished)
    log.warning(
        "an unfinished load was found: its slot and topics are removed and the next load begins",
        slots=slots,
        topics=topics,
        load=max(load.load for load in unfinished),
    )
    for name in slots:
        if free_slot(connection, settings, name, check) is not None:
            client.drop_slot(name)
    admin.delete_topics(topics)


def _slots(unfinished: Sequence[LoadRecord]) -> list[str]:
    return sorted({load.slot for load in unfinished if load.slot})
