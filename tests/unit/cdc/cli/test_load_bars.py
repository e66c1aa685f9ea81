"""Bars and lines of loads."""

import io

import pytest
from rich.console import Console

from cdc.cli.load_bars import LoadBars, LoadLines, load_share, load_words

A, B = "shop.public.a", "shop.public.{b}[red]"


def load(rows, done, chunks=10, **more):
    return {"number": 1, "rows": rows, "chunks_done": done, "chunks": chunks, **more}


@pytest.mark.parametrize(
    ("figures", "share", "words"),
    [
        (load(0, 0, chunks=0), None, ""),
        (load(5, 0), 0.0, "0 of 10 chunks, 5 rows"),
        (load(250, 1, rows_estimate=1000), 0.25, "1 of 10 chunks, 250 rows"),
        # The guess was far too low.
        (load(2500, 4, rows_estimate=1000), 0.4, "4 of 10 chunks, 2,500 rows"),
        (load(900, 10, rows_estimate=2000), 1.0, "10 of 10 chunks, 900 rows, changes since then"),
        (
            load(1, 0, rows_per_second=1234.5, seconds_left=3725.0),
            0.0,
            "0 of 10 chunks, 1 rows, 1,234 rows/s, 1:02 h left",
        ),
        (load(1, 0, seconds_left=61.2), 0.0, "0 of 10 chunks, 1 rows, 1:01 min left"),
    ],
)
def test_a_load_in_figures_and_words(figures, share, words):
    assert load_share(figures) == share
    assert load_words(figures).startswith(words)
    assert bool(load_words(figures)) is bool(words)


def test_lines_are_told_seldom():
    now = [0.0]
    told: list[str] = []
    with LoadLines([A, B], told.append, clock=lambda: now[0]) as lines:
        lines.show({A: load(0, 0, chunks=0)})
        assert told == []
        lines.show({A: load(1, 0)})
        lines.show({A: load(2, 0)})
        assert told == [f"  {A}: 0 of 10 chunks, 1 rows"]
        now[0] = 10.0
        lines.show({A: load(2, 0), B: load(7, 1)})
        lines.loaded([A])
        lines.loaded([A])
        now[0] = 20.0
        # What the daemon said before is no news.
        lines.show({A: load(3, 0), B: load(7, 1)})
    assert told[1:] == [
        f"  {A}: 0 of 10 chunks, 2 rows",
        f"  {B}: 1 of 10 chunks, 7 rows",
        f"  {A}: loaded",
    ]


def test_bars_show_each_table():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)

    def shown(bars):
        screen.seek(0)
        screen.truncate()
        bars._progress.refresh()
        return [line for line in screen.getvalue().splitlines() if "shop." in line][-2:]

    with LoadBars([A, B], console) as bars:
        first, second = shown(bars)
        assert A in first and "waits" in first
        assert B in second
        bars.show({A: load(250, 1, rows_estimate=500, rows_per_second=50.0, seconds_left=5.0)})
        first, second = shown(bars)
        assert "1 of 10 chunks, 250 rows, 50 rows/s, 5 s left" in first
        # Half of 20 signs.
        assert first.count("━") == 10
        assert "waits" in second
        bars.loaded([A])
        bars.show({A: load(1, 0), B: load(9, 9)})
        first, second = shown(bars)
        assert "loaded" in first and "chunks" not in first
        assert "9 of 10 chunks, 9 rows" in second
