"""Plays changes as an application would: small transactions, at a steady rate, in a thread."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import psycopg

from deploy.demo.play import ARRIVE, CANCEL, DEPART, INSERT, Change

#: What happens within so much of the flights' own time is one transaction.
_TRANSACTION_SPAN = dt.timedelta(minutes=10)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_WORDS = {INSERT: "scheduled", DEPART: "departed", ARRIVE: "arrived", CANCEL: "cancelled"}


def transactions(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Group changes, which are in order of time, into transactions."""
    for _, group in groupby(changes, key=lambda change: (change.at - _EPOCH) // _TRANSACTION_SPAN):
        yield list(group)


@dataclass(frozen=True, slots=True)
class Played:
    """How far the play is.

    Args:
        changes: Committed so far.
        transactions: Committed so far.
        kinds: Changes by what happened: ``scheduled``, ``departed``, ``arrived``, ``cancelled``.
        clock: The flights' own time.
        seconds: Since the play began.
    """

    changes: int
    transactions: int
    kinds: dict[str, int]
    clock: dt.datetime | None
    seconds: float

    @property
    def rate(self) -> float:
        """Changes per second."""
        return self.changes / self.seconds if self.seconds > 0 else 0.0


class Player:
    """Commits transactions from a thread of its own, until all are played or time is up.

    Args:
        conninfo: Keywords for ``psycopg.connect``.
        changes: In order of time.
        seconds: After so long nothing new is begun.
        rate: Changes per second that are not exceeded.
    """

    def __init__(
        self, conninfo: dict[str, Any], changes: list[Change], seconds: float, rate: float
    ) -> None:
        self.total = len(changes)
        self._conninfo = conninfo
        self._changes = changes
        self._seconds = seconds
        self._rate = rate
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._began = time.monotonic()
        self._ended: float | None = None
        self._done: tuple[int, int, dict[str, int], dt.datetime | None]
        self._done = (0, 0, dict.fromkeys(_WORDS.values(), 0), None)
        self._thread = threading.Thread(target=self._run, name="demo-player", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._began = time.monotonic()
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end for at most so long; whether it has come.

        Raises:
            psycopg.Error: What ended the play early.
        """
        self._thread.join(seconds)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End after the transaction that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def played(self) -> Played:
        """What has been committed by now."""
        changes, count, kinds, clock = self._done
        end = self._ended or time.monotonic()
        return Played(changes, count, kinds, clock, end - self._began)

    def _run(self) -> None:
        try:
            with psycopg.connect(**self._conninfo, autocommit=True) as connection:
                self._play(connection)
        except psycopg.Error as error:
            self._error = error
        finally:
            self._ended = time.monotonic()

    def _play(self, connection: psycopg.Connection[Any]) -> None:
        changes, count, kinds = 0, 0, dict(self._done[2])
        for group in transactions(self._changes):
            wait = changes / self._rate - (time.monotonic() - self._began)
            late = time.monotonic() - self._began >= self._seconds
            if late or (self._stop.wait(wait) if wait > 0 else self._stop.is_set()):
                return
            # One round trip for all statements of a transaction.
            with connection.transaction(), connection.pipeline(), connection.cursor() as cursor:
                for change in group:
                    cursor.execute(change.sql.encode(), change.values)
                    kinds[_WORDS[change.sql]] += 1
            changes += len(group)
            count += 1
            self._done = (changes, count, dict(kinds), group[-1].at)
