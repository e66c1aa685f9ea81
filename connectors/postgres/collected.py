"""Changes of tables whose keys can swap, collected until the end of their transaction."""

from __future__ import annotations

from cdc.envelope import OutRecord, TransactionFields
from cdc.errors import LogError, ProtocolViolation
from connectors.postgres.drift import SchemaDrift
from connectors.postgres.messages import Delete, Insert, Update
from connectors.postgres.net_effect import MOST_BYTES, NetEffect
from connectors.postgres.routes import Change, Route


class CollectedChanges:
    """Knows whose changes of the open transaction are still to be written."""

    def __init__(self) -> None:
        #: Routes with changes.
        self.routes: set[Route] = set()

    def clear(self) -> None:
        """A transaction starts; what one before it left, which was not completed, is void."""
        for route in self.routes:
            if route.net is not None:
                route.net.truncate()
        self.routes.clear()

    def take(self, route: Route, net: NetEffect, event: Change, ordinal: int, size: int) -> None:
        """Take a change in.

        Args:
            route: Of its table.
            net: That of the route.
            event: The change.
            ordinal: In its transaction.
            size: Of its message, bytes.

        Raises:
            ProtocolViolation: It does not have all columns.
            SchemaDrift: It does not have the whole old row, as of a partition of another identity.
            LogError: ``transaction_too_large``.
        """
        self.routes.add(route)
        old = None if isinstance(event, Insert) else event.old
        new = None if isinstance(event, Delete) else event.new
        if isinstance(event, Update):
            if old is None or event.old_kind != "O":
                raise SchemaDrift(
                    "partition_identity", "an update came without the old row of identity FULL"
                )
            new = tuple(route.encoder.complete("O", old, event.new)[0])
        if {len(row) for row in (new, old) if row is not None} != {route.width}:
            raise wrong_width()
        if old is not None:
            net.remove(tuple(old), ordinal, size)
        if new is not None:
            net.add(tuple(new), ordinal, size)
        if net.size > MOST_BYTES:
            raise LogError(
                "transaction_too_large",
                "a transaction over a table with a deferrable key has more changes than can be "
                "reduced to their effect on each key",
            )

    def records(self, route: Route, txn: TransactionFields) -> list[OutRecord]:
        """The records of one table; its changes count as written.

        Raises:
            BadValue, SchemaDrift: As ``NetEffect.records``.
        """
        self.routes.discard(route)
        return [] if route.net is None else route.net.records(txn)


def wrong_width(position: str | None = None) -> ProtocolViolation:
    """The error for a row that does not fit its relation."""
    what = "a row has more or fewer columns than its relation"
    return ProtocolViolation("malformed_message", what, position=position)
