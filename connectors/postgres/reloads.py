"""When the next load of a table that was set aside begins by itself."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from cdc.names import TableId
from connectors.postgres.aside import to_reload
from connectors.postgres.load_state import LoadBook

#: How often it is tried to begin a load, seconds.
_RETRY_S: Final = 30.0
_LOOK_S: Final = 0.5


class Reloads:
    """Knows which loads are due.

    Args:
        book: Of the tables.
    """

    def __init__(self, book: LoadBook) -> None:
        self._book = book
        self._due: list[TableId] = []
        self._looked = -_LOOK_S
        self._tried: dict[TableId, float] = {}

    @property
    def any_due(self) -> bool:
        """Whether ``take`` has something to give."""
        return bool(self._due)

    def hurry(self, loading: Collection[TableId]) -> None:
        """All that were tried before are due again; arguments as for ``look``."""
        self._tried.clear()
        self._looked = -_LOOK_S
        self.look(loading)

    def look(self, loading: Collection[TableId]) -> None:
        """Look for tables whose load is due; to be called often.

        Args:
            loading: Tables that are being loaded.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        self._due = [
            id
            for id in to_reload(self._book.records)
            if id not in loading and now - self._tried.get(id, -_RETRY_S) >= _RETRY_S
        ]

    def take(self) -> list[TableId]:
        """The tables whose load is to be tried now."""
        # Some may be gone since.
        due, self._due = [id for id in self._due if id in self._book.records], []
        self._tried.update(dict.fromkeys(due, time.monotonic()))
        return due
