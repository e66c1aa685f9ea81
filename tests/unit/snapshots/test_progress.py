"""What a load tells of its tables."""

from types import SimpleNamespace

import pytest

from cdc import codecs
from cdc.load import LoadTask
from snapshots import load
from snapshots.plan import BlockRange
from tests.support.schemas import table_schema


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def told(clock):
    return []


@pytest.fixture
def progress(told):
    tasks = [
        LoadTask(table_schema(("id", codecs.INT8), table=name), 1, name, 1) for name in ("a", "b")
    ]
    ranges = [BlockRange(0, 0, None), BlockRange(1, 0, 8), BlockRange(1, 8, None)]
    return load._Progress(
        tasks, ranges, [10, None], lambda p: told.append((p.table.table, p.rows, p.done))
    )


def test_a_table_is_told_to_be_done_once(progress, told, clock):
    whole, first, last = BlockRange(0, 0, None), BlockRange(1, 0, 8), BlockRange(1, 8, None)
    progress.done(1, whole, 10)
    assert told == [("a", 10, True)]
    # The other table's first rows take their time.
    for _ in range(3):
        clock.now += 1
        progress.tick()
    assert told[1:] == [("b", 0, False)] * 3
    progress.written(2, first, 4)
    clock.now += 1
    progress.done(1, last, 3)
    progress.done(2, first, 5)
    clock.now += 1
    progress.tick()
    assert [table for table, _, done in told if done] == ["a", "b"]
    assert told[-1] == ("b", 8, True)


def test_silence_is_filled_at_most_twice_a_second(progress, told, clock):
    progress.tick()
    for _ in range(10):
        clock.now += 0.1
        progress.tick()
    assert told == [("a", 0, False)] * 2
