"""Figures of loads: how far, how fast, how long still."""

from cdc.control import LoadRecord
from cdc.names import TableId
from cdc.states import COPYING, INTENDED, REPLAYING
from connectors.postgres.load_figures import LoadFigures
from connectors.postgres.load_state import Load


def load(table="a", number=1, state=COPYING, *, clear=True, partial=None, **fields):
    id = TableId("public", table)
    record = LoadRecord(id, number, "topic", "id", "chunks", 100, state, **fields)
    return Load(record, clear=clear, partial=partial or {})


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def figures(clock):
    return LoadFigures(lambda id: f"shop.{id}", clock)


def test_speed_takes_two_moments():
    clock = Clock()
    made = figures(clock)
    base = {"number": 1, "chunks": 10, "rows_estimate": 1000}
    first = made.of([load(chunks=10, estimate=1000)])
    assert first == {"shop.public.a": {**base, "rows": 0, "chunks_done": 0}}
    clock.now += 2
    # Rows of chunks that are not done count, too.
    second = made.of([load(chunks=10, estimate=1000, rows=100, done=((0, 0),), partial={1: 100})])
    assert second["shop.public.a"] == {
        **base, "rows": 200, "chunks_done": 1, "rows_per_second": 100, "seconds_left": 8
    }  # fmt: skip
    # Only the last half minute counts.
    clock.now += 40
    made.of([load(chunks=10, estimate=1000, rows=200)])
    clock.now += 20
    slow = made.of([load(chunks=10, estimate=1000, rows=220)])["shop.public.a"]
    assert (slow["rows_per_second"], slow["seconds_left"]) == (1, 780)


def test_a_guess_that_was_too_low_gives_way_to_the_chunks():
    clock = Clock()
    made = figures(clock)
    for estimate in (10, None):
        made.of([load(number=estimate or 2, chunks=4, estimate=estimate)])
        clock.now += 10
        fields = {"chunks": 4, "rows": 100, "done": ((0, 0),), "estimate": estimate}
        found = made.of([load(number=estimate or 2, **fields)])["shop.public.a"]
        assert (found["rows_per_second"], found["seconds_left"]) == (10, 30)


def test_what_is_not_known_is_not_told():
    clock = Clock()
    made = figures(clock)
    loads = [
        load("a", state=INTENDED, clear=False),
        load("b", clear=False, chunks=3),
        load("c", state=REPLAYING, chunks=3, rows=9, done=((0, 2),)),
        load("d", chunks=3, rows=50),
    ]
    for _ in range(3):
        found = made.of(loads)
        clock.now += 1
    assert not any("seconds_left" in table for table in found.values())
    assert [name for name in found if "rows_per_second" in found[name]] == ["shop.public.d"]
    # Rows went back: a chunk is copied again.
    assert made.of([load("d", chunks=3, rows=10)])["shop.public.d"]["rows_per_second"] == 0


def test_the_next_load_of_a_table_begins_at_zero():
    clock = Clock()
    made = figures(clock)
    made.of([load(rows=10_000, chunks=2)])
    clock.now += 5
    assert "rows_per_second" not in made.of([load(number=2, chunks=2)])["shop.public.a"]
    assert made.of([]) == {}
