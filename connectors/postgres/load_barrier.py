"""The moment from which chunks may be read: nothing is open that could have escaped the spool."""

from __future__ import annotations

import time
from typing import Final

import structlog

from connectors.postgres.load_catalog import LoadCatalog

log = structlog.get_logger(__name__)

_EVERY_S: Final = 0.2
_WARN_EVERY_S: Final = 10.0


class Barrier:
    """Waits until all transactions have ended that had an id when it was first asked.

    Args:
        catalog: Asks the source.
    """

    def __init__(self, catalog: LoadCatalog) -> None:
        self._catalog = catalog
        self._xid: int | None = None
        self._passed = False
        self._asked = self._since = self._warned = 0.0

    @property
    def asked(self) -> bool:
        """Whether it is known which transactions it waits for."""
        return self._xid is not None

    def passed(self) -> bool:
        """Whether they have; asks the source a few times a second at most.

        Raises:
            CdcError: From Postgres.
        """
        now = time.monotonic()
        if self._passed or now - self._asked < _EVERY_S:
            return self._passed
        self._asked = now
        if self._xid is None:
            self._xid = self._catalog.next_xid()
            self._since = self._warned = now
        self._passed = self._catalog.oldest_xid() >= self._xid
        if not self._passed and now - self._warned >= _WARN_EVERY_S:
            self._warned = now
            log.warning(
                "the load waits for transactions that were open when it began",
                seconds=round(now - self._since),
                holders=self._catalog.holders(),
            )
        return self._passed
