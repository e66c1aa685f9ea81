"""Rows of a derived table against what a case expects, and the difference in a few words. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from tests.cases.case import Cell, Expected, cell, digest, line

_SHOWN = 2
_LONGEST = 160


def lines_of(rows: Sequence[Sequence[str | None]]) -> list[str]:
    """Printed rows as canonical lines."""
    return [line([cell(text) for text in row]) for row in rows]


def difference(expected: Expected, found: Sequence[str], wanted: Sequence[str] | None) -> str:
    """What tells the two apart; empty when they are equal as multisets.

    Args:
        expected: The table.
        found: Lines of the derived rows.
        wanted: Lines to compare with instead of the case's own; None: those of the case.
    """
    if wanted is None and expected.digest is not None:
        count, digested = digest(found)
        if (count, digested) == expected.digest:
            return ""
        return f"{count} rows, expected {expected.digest[0]}; their digests differ"
    rows = expected.rows if wanted is None else wanted
    if rows is None:
        return ""
    missing = Counter(rows) - Counter(found)
    extra = Counter(found) - Counter(rows)
    if not missing and not extra:
        return ""
    return _told(expected, list(missing.elements()), list(extra.elements()))


def _told(expected: Expected, missing: list[str], extra: list[str]) -> str:
    parts: list[str] = []
    by_key = {key: row for row in extra if (key := _key(expected, row)) is not None}
    for row in list(missing):
        key = _key(expected, row)
        if key is not None and key in by_key:
            other = by_key.pop(key)
            missing.remove(row)
            extra.remove(other)
            parts.append(f"key {_short(key)}: {_cells(expected, row, other)}")
    if missing:
        parts.append(f"{len(missing)} missing: {_some(missing)}")
    if extra:
        parts.append(f"{len(extra)} too many: {_some(extra)}")
    more = len(parts) - _SHOWN - 1
    shown = parts[: _SHOWN + 1]
    return "; ".join(shown) + (f"; and {more} rows more" if more > 0 else "")


def _key(expected: Expected, row: str) -> str | None:
    if not expected.key or not set(expected.key) <= set(expected.columns):
        return None
    cells = json.loads(row)
    return line([cells[expected.columns.index(name)] for name in expected.key])


def _cells(expected: Expected, wanted: str, found: str) -> str:
    pairs = zip(expected.columns, json.loads(wanted), json.loads(found), strict=True)
    bad = [f"{name} is {_cell(b)}, not {_cell(a)}" for name, a, b in pairs if a != b]
    rest = len(bad) - _SHOWN
    return ", ".join(bad[:_SHOWN]) + (f" and {rest} columns more" if rest > 0 else "")


def _cell(value: Cell) -> str:
    if isinstance(value, dict):
        return f"a text of {value['len']} characters ({value['sha256'][:8]})"
    return _short(json.dumps(value, ensure_ascii=False))


def _some(rows: Sequence[str]) -> str:
    return ", ".join(_short(row) for row in rows[:_SHOWN])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
