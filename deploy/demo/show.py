"""What a person sees: steps with their numbers; a line that changes where there is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

#: Without a terminal, progress is told this rarely, seconds; the same again more rarely still.
_TELL_EVERY_S = 10.0
_TELL_AGAIN_S = 60.0
_INDENT = "   "


class Show:
    """Writes to stdout.

    Args:
        quiet: Write nothing but troubles (``--json``).
    """

    def __init__(self, *, quiet: bool = False) -> None:
        if hasattr(sys.stdout, "reconfigure"):
            # A terminal that has no such sign shows another one.
            sys.stdout.reconfigure(errors="replace")
        self._quiet = quiet
        self._console = Console(highlight=False, markup=False, emoji=False, quiet=quiet)
        self._live = self._console.is_terminal and not quiet
        self._fancy = (self._console.encoding or "").lower().startswith("utf")
        self._status: Status | None = None
        self._told = 0.0
        self._told_text = ""
        self._steps = 0

    def headline(self, text: str) -> None:
        """The first line."""
        self._print(Text(text, style="bold"))

    def say(self, text: str, style: str = "") -> None:
        """Lines within a step."""
        for line in text.splitlines():
            self._print(Text(_INDENT + line if line else "", style=style))

    def quote(self, text: str) -> None:
        """Lines that something else has answered, set off."""
        self.say("\n".join(f"  {line}" if line else "" for line in text.splitlines()), style="cyan")

    def good(self, text: str) -> None:
        """A line on what was found to be right."""
        mark = "✓" if self._fancy else "ok:"
        self._print(Text(f"{_INDENT}{mark} ", style="green").append(text, style="default"))

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A step and its title."""
        self._steps += 1
        self._print(Text(""))
        self._print(Text(f"{self._steps}  {title}", style="bold"))
        self._told = time.monotonic()
        try:
            yield
        finally:
            self._end_status()

    def progress(self, text: str) -> None:
        """How far something is; gone once the next line is written."""
        if self._live:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            self._status.update(Text(text))
            return
        every = _TELL_AGAIN_S if text == self._told_text else _TELL_EVERY_S
        if time.monotonic() - self._told >= every:
            self._told = time.monotonic()
            self._told_text = text
            self.say(f"… {text}" if self._fancy else f"... {text}")

    def done(self) -> None:
        """No more progress."""
        self._end_status()

    def trouble(self, lines: list[str]) -> None:
        """What led to an error, on stderr."""
        self._end_status()
        for line in lines:
            print(f"{_INDENT}{line}", file=sys.stderr, flush=True)

    def _print(self, text: Text) -> None:
        self._end_status()
        # No wrapping of our own: pipes and files get whole lines.
        self._console.print(text, soft_wrap=True)

    def _end_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
