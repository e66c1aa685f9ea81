"""What the daemon's children say of loads, laid over what control says."""

from typing import Any

from cdc.cli.loading import add_figures, load_figures
from cdc.control import LoadRecord
from cdc.load_progress import chunks_done, load_words
from cdc.names import TableId
from cdc.states import COPYING, INTENDED, REPLAYING

FIGURES = {"number": 2, "rows": 1500, "chunks_done": 1, "chunks": 4, "rows_per_second": 99.96}


def status(**loading):
    return {"shop": {"tables": {"public.orders": {"loading": loading}, "public.a": {}}}}


def load(state, **fields):
    return LoadRecord(TableId("public", "orders"), 1, "topic", "id", "chunks", 100, state, **fields)


def test_figures_of_the_same_load_are_taken():
    children: list[Any] = [
        {"name": "capture", "loads": {"shop.public.orders": FIGURES}},
        {"name": "apply"},
    ]
    assert load_figures(children) == {"shop.public.orders": FIGURES}
    sources = status(load=2, rows=1200, rows_per_second=None, seconds_left=None)
    add_figures(sources, children)
    assert sources["shop"]["tables"]["public.orders"]["loading"] == {
        "load": 2, "rows": 1500, "rows_per_second": 100.0, "seconds_left": None
    }  # fmt: skip
    # Control is ahead of the report.
    sources = status(load=3, rows=0, rows_per_second=None, seconds_left=None)
    add_figures(sources, children)
    assert sources["shop"]["tables"]["public.orders"]["loading"]["rows"] == 0
    sources = status(load=2, rows=1700)
    add_figures(sources, children)
    assert sources["shop"]["tables"]["public.orders"]["loading"]["rows"] == 1700


def test_a_load_in_words():
    half = load(COPYING, rows=1200, estimate=5000, chunks=13, done=((0, 1), (5, 5)))
    assert chunks_done(half) == 3
    assert load_words(half) == "1,200 of about 5,000 (24 %) rows, 3 of 13 chunks are copied"
    # The guess was too low, or there is none.
    more = load(COPYING, rows=9000, estimate=5000, chunks=13, done=((0, 11),))
    assert load_words(more) == "9,000 of about 5,000 (99 %) rows, 12 of 13 chunks are copied"
    assert load_words(load(COPYING, rows=7, chunks=2)) == "7 rows, 0 of 2 chunks are copied"
    assert load_words(load(INTENDED)) == "it has not begun"
    assert load_words(load(COPYING)) == "nothing is copied yet"
    assert load_words(load(REPLAYING, rows=10)).startswith("all 10 rows are copied")
