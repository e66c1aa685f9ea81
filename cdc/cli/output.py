"""How commands answer: text for people, or one JSON object; errors with what mends them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from cdc.errors import CdcError, EnvironmentProblem

if TYPE_CHECKING:
    from rich.console import Console

ENVELOPE_VERSION = 1
_NOT_WRITTEN = "answer_not_written"


def envelope(
    command: str,
    *,
    summary: str,
    result: Any = None,
    error: CdcError | None = None,
) -> dict[str, Any]:
    """The JSON form of every command's answer (docs/formats.md)."""
    return {
        "v": ENVELOPE_VERSION,
        "command": command,
        "ok": error is None,
        "summary": summary,
        "result": result,
        "error": error.to_json() if error is not None else None,
    }


class Output:
    """Where one command's answer goes.

    Args:
        command: The command's name.
        as_json: One JSON object on stdout, nothing else there.
    """

    def __init__(self, command: str, *, as_json: bool) -> None:
        self.command = command
        self.as_json = as_json

    def note(self, text: str) -> None:
        """Progress for people; on stderr, so that pipes get the answer only."""
        if not self.as_json:
            print(text, file=sys.stderr, flush=True)

    @property
    def terminal(self) -> Console | None:
        """Where progress can be drawn; None: it is to be told in lines, or not at all."""
        if self.as_json or not sys.stderr.isatty():
            return None
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
        return None if console.is_dumb_terminal else console

    def answer(
        self, summary: str, result: Any = None, *, human: Callable[[], str] | None = None
    ) -> None:
        """The command's outcome: ``result`` as JSON, or ``human()`` (else ``summary``)."""
        if self.as_json:
            print_json(envelope(self.command, summary=summary, result=result))
        else:
            write((human() if human is not None else summary) + "\n")

    def failure(self, error: CdcError, result: Any = None) -> None:
        """An error: stderr for people, the envelope (with what was found) for programs."""
        if self.as_json and error.code != _NOT_WRITTEN:
            print_json(envelope(self.command, summary=error.message, result=result, error=error))
        else:
            print(f"error: {error}", file=sys.stderr, flush=True)


def print_json(record: dict[str, Any]) -> None:
    """One line of compact JSON on stdout."""
    write(json.dumps(record, separators=(",", ":"), ensure_ascii=False, default=str) + "\n")


def write(text: str) -> None:
    """Write a piece of the answer to stdout.

    Raises:
        EnvironmentProblem: ``answer_not_written``: a full disk, and the like.
        BrokenPipeError: The reader has seen enough.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in its buffer would fail again at exit.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
        raise EnvironmentProblem(
            _NOT_WRITTEN,
            f"the answer could not be written: {error.strerror}",
            remedy="look at where stdout leads; what the command does was done",
        ) from None


def exact_text(arguments: Sequence[str]) -> None:
    """Let stdout take every character: for programs in UTF-8, for people escaped if it must be."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if {"--json", "--csv"} & {*arguments}:
            sys.stdout.reconfigure(encoding="utf-8")
        else:
            sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def reporting(output: Output) -> Iterator[Output]:
    """Turn an error into its message and exit code.

    Raises:
        typer.Exit: With the error's exit code.
    """
    try:
        yield output
    except CdcError as error:
        output.failure(error)
        raise typer.Exit(error.exit_code) from None


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns padded with spaces; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(title), *(len(row[i]) for row in cells)) if cells else len(title)
        for i, title in enumerate(header)
    ]
    right = [
        bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(header))
    ]
    lines = [_line(header, widths, right), *(_line(row, widths, right) for row in cells)]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _line(cells: Sequence[str], widths: list[int], right: list[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def human_bytes(count: int | None) -> str:
    """``1.5 MB``; multiples of 1024."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"
