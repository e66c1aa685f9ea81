"""How far loads are while one waits for them: a bar for each table, or lines without a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

#: Without a terminal a table is told of this rarely, seconds.
_TELL_EVERY_S: Final = 10.0
_SHARE_STEPS: Final = 1000

#: Figures of loads by ``source.schema.table``, as ``cdc.cli.loading.load_figures`` gives them.
Figures = Mapping[str, Mapping[str, float]]


class LoadView(Protocol):
    """Shows loads inside a ``with`` block."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; what is not loaded stays as it is."""

    def show(self, figures: Figures) -> None:
        """Take the figures as they are now."""

    def loaded(self, tables: Sequence[str]) -> None:
        """The loads of these tables are done."""


class LoadLines:
    """Tells in lines.

    Args:
        tables: In the order to show them.
        tell: Takes a line.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        tables: Sequence[str],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._tables = tables
        # When a table was told of, and what.
        self._told: dict[str, tuple[float, str]] = {}

    def __enter__(self) -> Self:
        """Nothing is told before there is something to tell."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left open."""

    def show(self, figures: Figures) -> None:
        """Tell of each table that has not been told of for a while."""
        now = self._clock()
        for table in self._tables:
            words = load_words(figures[table]) if table in figures else ""
            at, before = self._told.get(table, (now - _TELL_EVERY_S, ""))
            if words not in ("", before) and now - at >= _TELL_EVERY_S:
                self._told[table] = now, words
                self._tell(f"  {table}: {words}")

    def loaded(self, tables: Sequence[str]) -> None:
        """Tell it once of each."""
        for table in tables:
            if self._told.get(table, (0.0, ""))[1] != "loaded":
                # Figures that come late are older.
                self._told[table] = math.inf, "loaded"
                self._tell(f"  {table}: loaded")


class LoadBars:
    """Draws bars.

    Args:
        tables: In the order to show them.
        console: A terminal.
    """

    def __init__(self, tables: Sequence[str], console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[words]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            table: self._progress.add_task(table, total=None, words="waits") for table in tables
        }
        self._loaded: set[str] = set()

    def __enter__(self) -> Self:
        """Draw."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the bars as they are, above what comes next."""
        self._progress.stop()

    def show(self, figures: Figures) -> None:
        """Move the bars."""
        for table, task in self._tasks.items():
            if table not in figures or table in self._loaded:
                continue
            share = load_share(figures[table])
            self._progress.update(
                task,
                total=None if share is None else _SHARE_STEPS,
                completed=0 if share is None else round(share * _SHARE_STEPS),
                words=load_words(figures[table]) or "waits",
            )

    def loaded(self, tables: Sequence[str]) -> None:
        """Fill their bars."""
        self._loaded.update(tables)
        for table in tables:
            self._progress.update(
                self._tasks[table], total=_SHARE_STEPS, completed=_SHARE_STEPS, words="loaded"
            )


def load_share(load: Mapping[str, float]) -> float | None:
    """How much of a load is copied, from 0 to 1; None: nothing is planned yet."""
    rows, estimate = load["rows"], load.get("rows_estimate", 0.0)
    if not load["chunks"]:
        return None
    if load["chunks_done"] >= load["chunks"]:
        return 1.0
    # The guess knows of what is copied within a chunk, but it may be far too low.
    if rows < estimate:
        return rows / estimate
    return load["chunks_done"] / load["chunks"]


def load_words(load: Mapping[str, float]) -> str:
    """``3 of 13 chunks, 1,200 rows, 950 rows/s, 4 s left``; empty before anything is planned."""
    if not load["chunks"]:
        return ""
    words = [
        f"{load['chunks_done']:,.0f} of {load['chunks']:,.0f} chunks",
        f"{load['rows']:,.0f} rows",
    ]
    if load["chunks_done"] >= load["chunks"]:
        return ", ".join([*words, "changes since then follow"])
    if "rows_per_second" in load:
        words.append(f"{load['rows_per_second']:,.0f} rows/s")
    if "seconds_left" in load:
        words.append(f"{_duration(load['seconds_left'])} left")
    return ", ".join(words)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = whole // 60, whole // 3600
    return f"{minutes}:{whole % 60:02} min" if hours == 0 else f"{hours}:{minutes % 60:02} h"
