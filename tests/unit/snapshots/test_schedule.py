import dataclasses

import pytest

from cdc import codecs
from cdc.load import ChunkPlan, LoadTask
from snapshots.schedule import Schedule
from tests.support.schemas import table_schema


def task(table, *left):
    schema = table_schema(("id", codecs.INT8), table=table)
    return LoadTask(schema, 1, table, 1, 100, ChunkPlan.whole(10, 100), left)


A, B = task("a", 0, 1, 2), task("b", 5)


@pytest.fixture
def schedule():
    schedule = Schedule()
    schedule.begin(A)
    schedule.begin(B)
    return schedule


def take_all(schedule, now=0.0):
    taken = []
    while chunk := schedule.next(now):
        taken.append(chunk)
    return taken


def test_loads_in_order_of_their_beginning_chunks_in_the_order_given(schedule):
    assert schedule.ready(0) == len(schedule) == 4
    assert schedule.first(0) is A
    assert take_all(schedule) == [(A.key, 0), (A.key, 1), (A.key, 2), (B.key, 5)]
    assert schedule.ready(0) == 0
    assert len(schedule) == 4
    for chunk in [(A.key, 0), (A.key, 1), (A.key, 2), (B.key, 5)]:
        schedule.done(chunk)
    assert len(schedule) == 0
    assert A.key not in schedule and B.key not in schedule


def test_a_load_without_chunks_is_over(schedule):
    nothing = dataclasses.replace(A, schema=dataclasses.replace(A.schema, load=2), left=())
    schedule.begin(nothing)
    assert nothing.key not in schedule


def test_the_same_load_twice(schedule):
    with pytest.raises(ValueError, match="runs already"):
        schedule.begin(A)


def test_chunks_that_come_back_are_next(schedule):
    assert schedule.next(0) and schedule.next(0)
    schedule.give_back([(A.key, 0), (A.key, 1), (("gone", "t"), 1)])
    assert take_all(schedule) == [(A.key, 0), (A.key, 1), (A.key, 2), (B.key, 5)]


def test_a_forgotten_load_is_not_copied_any_more(schedule):
    first = schedule.next(0)
    schedule.forget(A.key)
    schedule.forget(A.key)
    schedule.give_back([first])
    schedule.done(first)
    assert take_all(schedule) == [(B.key, 5)]
    schedule.begin(A)
    assert len(schedule) == 4


def test_a_locked_table_waits_and_is_then_tried_with_one_chunk(schedule):
    first, second = schedule.next(0), schedule.next(0)
    schedule.put_off(first, 10.0)
    assert take_all(schedule, 5.0) == [(B.key, 5)]
    # The other chunk of it, which waits for the same lock, is still out.
    assert schedule.ready(11.0) == 0 and schedule.next(11.0) is None
    schedule.put_off(second, 12.0)
    assert schedule.next(11.0) is None
    assert schedule.ready(12.0) == 1
    assert schedule.next(12.0) == (A.key, 1)
    assert schedule.next(12.0) is None
    schedule.done((A.key, 1))
    assert take_all(schedule, 12.0) == [(A.key, 0), (A.key, 2)]


def test_deaths_count_until_any_chunk_is_done(schedule):
    first, second = schedule.next(0), schedule.next(0)
    assert [schedule.died(first), schedule.died(first)] == [1, 2]
    assert schedule.deaths(first) == 2 and schedule.deaths(second) == 0
    schedule.done(second)
    assert schedule.deaths(first) == 0
