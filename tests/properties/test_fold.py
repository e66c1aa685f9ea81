"""Folding a range over the replica gives what the source held, whatever the range."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.envelope import LogRecord
from cdc.errors import LogError
from cdc.fold import apply_in_order, fold, settle
from cdc.position import Position, frontier
from tests.support.histories import random_history

seeds = st.integers(0, 2**32)


def folded(history, start, end, base):
    """The replica after one batch, as apply and query do it."""
    truncate = history.newest_truncate(end)
    outcomes = fold(history.records, end, truncate, start=start)
    cut = truncate is not None and (start is None or truncate >= start)
    rows = {} if cut else dict(base)
    for key, outcome in outcomes.items():
        rows.pop(key, None)
        if outcome.row is not None:
            rows[key] = settle(outcome.row, base)
    return rows


@given(seeds, st.data())
def test_any_two_batches_give_the_source(seed, data):
    history = random_history(seed)
    moments = [at for at, _ in history.states]
    middle = data.draw(st.sampled_from(moments))
    rows = folded(history, middle, moments[-1], history.state_at(middle))
    assert rows == history.state_at(moments[-1])


@given(seeds)
def test_batch_by_batch_gives_the_source_at_every_frontier(seed):
    history = random_history(seed)
    start = None
    rows: dict[bytes, dict[str, Any]] = {}
    for at, expected in history.states:
        rows = folded(history, start, at, rows)
        assert rows == expected
        start = at


@given(seeds)
def test_the_order_of_arrival_does_not_matter(seed):
    history = random_history(seed)
    end = history.states[-1][0]
    shuffled = list(history.records)
    random.Random(seed).shuffle(shuffled)
    truncate = history.newest_truncate(end)
    middle = history.states[len(history.states) // 2][0]
    assert fold(shuffled, end, truncate, start=middle) == fold(
        history.records, end, truncate, start=middle
    )


@given(seeds)
def test_a_rebuild_from_zero_gives_the_source(seed):
    history = random_history(seed)
    end, expected = history.states[-1]
    assert folded(history, None, end, {}) == expected


@given(seeds)
def test_the_fold_is_the_same_as_applying_one_by_one(seed):
    history = random_history(seed)
    end = history.states[-1][0]
    truncate = history.newest_truncate(end)
    assert folded(history, None, end, {}) == apply_in_order({}, history.records, end, truncate)


def record(offset, position, op, key=b'{"id":1}', **fields):
    return LogRecord(0, offset, key, position, 1, op, **fields)


def test_a_value_that_is_nowhere_is_an_error_only_if_it_is_needed():
    update = record(1, Position(0, 10, 1), "u", after={"id": 1}, unchanged=("big",))
    with pytest.raises(LogError) as caught:
        fold([update], frontier(0, 100))
    assert caught.value.code == "value_lost"
    gone = record(2, Position(0, 20, 1), "d")
    assert fold([update, gone], frontier(0, 100))[b'{"id":1}'].row is None
    late = record(2, Position(0, 20, 1), "u", after={"id": 1, "big": "x"})
    assert fold([update, late], frontier(0, 100))[b'{"id":1}'].row == {"id": 1, "big": "x"}


def test_settle_refuses_to_guess():
    update = record(1, Position(0, 10, 1), "u", after={"id": 1}, unchanged=("big",))
    outcome = fold([update], frontier(0, 100), start=frontier(0, 5))[b'{"id":1}']
    assert outcome.inherits and outcome.row is not None
    assert settle(outcome.row, {b'{"id":1}': {"big": None}}) == {"id": 1, "big": None}
    with pytest.raises(LogError):
        settle(outcome.row, {})


def test_a_record_that_starts_at_the_frontier_is_outside():
    edge = record(1, Position(0, 100, 1), "c", after={"id": 1})
    assert fold([edge], frontier(0, 100)) == {}
    assert set(fold([edge], frontier(0, 101), start=frontier(0, 100))) == {b'{"id":1}'}
