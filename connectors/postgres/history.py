"""What the log holds already and the server sends again: it has to be the same history. Pure."""

from __future__ import annotations

from cdc.errors import HistoryGap
from cdc.frontier import LastTransaction
from cdc.position import format_lsn
from connectors.postgres.messages import Begin, Commit
from connectors.postgres.remedies import RELOAD_REMEDY


class KnownHistory:
    """Transactions below the log's frontier, as they come again.

    Args:
        offset: Where the frontier is.
        start: Where the stream starts.
        last: The last transaction of the log, if it is known.
    """

    def __init__(self, offset: int, start: int, last: LastTransaction | None) -> None:
        self._offset = offset
        # What the log holds beyond the slot's place has to come again.
        self._expected = last if last is not None and last.lsn >= start else None
        #: Everything has come again: from here on it is new.
        self.passed = False

    def holds(self, begin: Begin) -> bool:
        """Whether the log has a transaction; compares it if it is the last one.

        Raises:
            HistoryGap: ``history_diverged``.
        """
        # The frontier is exclusive: a commit record that starts exactly there is new.
        if begin.final_lsn >= self._offset:
            return False
        expected = self._expected
        if expected is not None and begin.final_lsn == expected.lsn:
            if (begin.xid, begin.commit_us) != (expected.xid, expected.commit_us):
                raise diverged(begin.final_lsn)
            self._expected = None
        return True

    def check_end(self, commit: Commit) -> None:
        """A transaction that the log holds ends below the frontier.

        Raises:
            HistoryGap: ``history_diverged``.
        """
        if commit.end_lsn > self._offset:
            raise diverged(commit.commit_lsn)

    def pass_on(self) -> None:
        """Nothing more comes again.

        Raises:
            HistoryGap: ``history_diverged``: something that the log holds did not come.
        """
        if self._expected is not None:
            raise diverged(self._expected.lsn)
        self.passed = True


def diverged(lsn: int) -> HistoryGap:
    """The error for a transaction that is not as the log holds it."""
    return HistoryGap(
        "history_diverged",
        "the server's history is not the one that was captured: the transaction at "
        f"{format_lsn(lsn)} differs from the log's (a backup or standby took over?)",
        position=format_lsn(lsn),
        remedy=RELOAD_REMEDY,
    )
