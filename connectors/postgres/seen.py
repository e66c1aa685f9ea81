"""Whether a snapshot sees a transaction of the stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.errors import LogError

_IDS: Final = 2**32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The snapshot of a copy.

    Args:
        xmin: All transactions with smaller ids had ended.
        xmax: None with this id or a higher one had.
        running: Those between that had not.
        copied_at: LSN above the commit records of all transactions that it sees.
    """

    xmin: int
    xmax: int
    running: frozenset[int]
    copied_at: int

    @classmethod
    def parse(cls, text: str | None, copied_at: int) -> Snapshot:
        """Read ``pg_current_snapshot()``: ``xmin:xmax:xip,…``, ids of 64 bits.

        Raises:
            LogError: ``bad_record``.
        """
        try:
            xmin, xmax, running = (text or "").split(":")
            ids = frozenset(map(int, running.split(","))) if running else frozenset()
            return cls(int(xmin), int(xmax), ids, copied_at)
        except ValueError:
            raise LogError(
                "bad_record", "the load of a table without a key has no snapshot"
            ) from None

    def sees(self, xid: int, lsn: int) -> bool:
        """Whether what a committed transaction did is visible in it.

        Args:
            xid: Its id, the lower 32 bits.
            lsn: Start of its commit record.
        """
        if lsn >= self.copied_at:
            return False
        # The id of 64 bits that is nearest to xmax: while the snapshot was held, the server gave
        # none that is 2^31 away from xmin or more.
        apart = (xid - self.xmax) % _IDS
        full = self.xmax + (apart if apart < _IDS // 2 else apart - _IDS)
        return full < self.xmin or (full < self.xmax and full not in self.running)
