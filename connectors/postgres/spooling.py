"""The stream's side of spools: changes of tables that are being loaded, as they came."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.errors import ProtocolViolation
from connectors.postgres.messages import Begin
from connectors.postgres.routes import Send, SpoolRoute
from connectors.postgres.spool import SpoolFrame


class Spooling:
    """Sends raw messages to spools, each with the relation in force before it.

    Args:
        epoch: Of the source's history.
        send: Takes a record into the open Kafka transaction.
    """

    def __init__(self, epoch: int, send: Send) -> None:
        self._epoch = epoch
        self._send = send
        #: Tables whose events go to a spool (too), by relation id.
        self.routes: dict[int, SpoolRoute] = {}
        # The messages that relations were described in.
        self._described: dict[int, bytes] = {}
        self._begin: Begin | None = None
        self._frame: SpoolFrame | None = None

    def describe(self, relid: int, message: bytes) -> None:
        """A relation is as told from here on."""
        self._described[relid] = message
        if (spool := self.routes.get(relid)) is not None:
            spool.described = False

    def begin(self, begin: Begin) -> None:
        """A transaction starts."""
        self._begin, self._frame = begin, None

    def write(self, relid: int, messages: Sequence[bytes], ordinal: int) -> int:
        """Let changes of a relation that is spooled wait.

        Args:
            relid: The relation.
            messages: Its changes, one after the other.
            ordinal: Of the first.

        Returns:
            How many records were sent.

        Raises:
            ProtocolViolation: Nobody described the relation.
            LogError: As ``TransactionalProducer.send``.
        """
        spool, begin = self.routes[relid], self._begin
        if begin is None:
            raise ProtocolViolation("unexpected_message", "a change outside of a transaction")
        frame = self._frame = self._frame or SpoolFrame(self._epoch, begin)
        if not spool.described:
            if relid not in self._described:
                raise undescribed(relid)
            message = self._described[relid]
            self._send(spool.topic, 0, None, message, frame.headers(ordinal))
            spool.described = True
        for at, message in enumerate(messages, ordinal):
            self._send(spool.topic, 0, None, message, frame.headers(at))
        return len(messages)


def undescribed(relid: int) -> ProtocolViolation:
    """The error for a change of a relation that no Relation message came before."""
    what = f"a change of relation {relid}, which was not described"
    return ProtocolViolation("unexpected_message", what)
