"""When loads of tables that were set aside begin: soon, but not again and again in vain."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.control import TableRecord
from cdc.names import TableId
from cdc.states import ERRORED, READY, RELOADS, WAITS
from connectors.postgres.reloads import Reloads

T = TableId("public", "t")


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def record(state=ERRORED, aside=RELOADS):
    return TableRecord(T, state, 1, "topic", None, 1, aside=aside)


def reloads_of(of_table):
    """The tables, which can change, and what is tested."""
    book = SimpleNamespace(records={T: of_table})
    return book, Reloads(cast(Any, book))


def seconds_to_due(clock, found, loading=()):
    """Until the table's load is due; None: not within two hours."""
    for second in range(7200):
        found.look(loading)
        if found.any_due:
            assert found.take() == [T]
            return second
        clock.now += 1
    return None


def test_loads_that_come_to_nothing_are_tried_less_and_less_often(clock):
    book, found = reloads_of(record())
    assert seconds_to_due(clock, found) == 0
    waits = []
    for _ in range(9):
        clock.now += 5
        found.look([T])
        clock.now += 5
        waits.append(seconds_to_due(clock, found))
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    # Somebody asks for it.
    found.hurry([])
    assert found.take() == [T]
    # One that became Ready in between begins at once when it is set aside again.
    clock.now += 5
    found.look([T])
    book.records[T] = record(READY, None)
    clock.now += 5
    found.look([])
    book.records[T] = record()
    clock.now += 30
    assert seconds_to_due(clock, found) == 0


def test_a_table_that_cannot_begin_is_asked_about_every_half_minute(clock):
    _, found = reloads_of(record())
    assert [seconds_to_due(clock, found) for _ in range(4)] == [0, 30, 30, 30]


def test_a_table_that_waits_for_somebody_is_never_due(clock):
    _, found = reloads_of(record(aside=WAITS))
    assert seconds_to_due(clock, found) is None
