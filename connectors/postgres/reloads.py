"""When the next load of a table that was set aside begins by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from typing import Final

from cdc.names import TableId
from connectors.postgres.aside import to_reload
from connectors.postgres.load_state import LoadBook

#: How often it is tried to begin a load, seconds.
_RETRY_S: Final = 30.0
#: A table whose loads began and came to nothing waits twice as long each time, up to this.
_LONGEST_S: Final = 3600.0
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
        self._loading: set[TableId] = set()
        self._failed: Counter[TableId] = Counter()

    @property
    def any_due(self) -> bool:
        """Whether ``take`` has something to give."""
        return bool(self._due)

    def hurry(self, loading: Collection[TableId]) -> None:
        """All that were tried before are due again; arguments as for ``look``."""
        self._tried.clear()
        self._failed.clear()
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
        aside = to_reload(self._book.records)
        self._count_failed(aside, loading)
        self._due = [
            id
            for id in aside
            if id not in loading and now - self._tried.get(id, -_LONGEST_S) >= self._wait(id)
        ]

    def _count_failed(self, aside: Collection[TableId], loading: Collection[TableId]) -> None:
        for id in self._loading.difference(loading):
            if id in aside:
                self._failed[id] += 1
                self._tried[id] = self._looked
            else:
                del self._failed[id]
        self._loading = set(aside).intersection(loading)

    def _wait(self, id: TableId) -> float:
        return min(_RETRY_S * 2.0 ** self._failed[id], _LONGEST_S)

    def take(self) -> list[TableId]:
        """The tables whose load is to be tried now."""
        # Some may be gone since.
        due, self._due = [id for id in self._due if id in self._book.records], []
        self._tried.update(dict.fromkeys(due, time.monotonic()))
        return due
