"""Renders an answer: a table for people, JSON and CSV for programs; every value exact.

Integers are JSON numbers of any size; DECIMAL is a string; bytes are base64; instants end in
``Z``; NaN and infinities are strings, as in the log's envelope.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from cdc.position import format_lsn
from cdc.query.result import AsOf, QueryResult


def to_json(result: QueryResult) -> dict[str, Any]:
    """The ``result`` of the command's JSON envelope."""
    return {
        "columns": [
            {"name": name, "type": kind}
            for name, kind in zip(result.columns, result.types, strict=True)
        ],
        "rows": [[json_value(value) for value in row] for row in result.rows],
        "row_count": len(result.rows),
        "as_of": {
            source: {
                "position": str(at.position),
                "end_lsn": format_lsn(at.position.lsn),
                "last_commit_us": at.last_commit_us,
                "age_seconds": round(at.age_s, 3),
                "last_good": at.last_good,
            }
            for source, at in result.as_of.items()
        },
        "tail_records": result.tail_records,
        "notes": list(result.notes),
        "seconds": {phase: round(value, 4) for phase, value in result.seconds.items()},
    }


def json_value(value: Any) -> Any:
    """A value of a row in JSON's types."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _float_word(value)
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return _text(value)


def to_csv(result: QueryResult) -> str:
    """RFC 4180 with a header; NULL is an empty field, an empty string is ``""``."""
    lines = [",".join(_csv_field(name) for name in result.columns)]
    lines += [
        ",".join("" if value is None else _csv_field(_text(value)) for value in row)
        for row in result.rows
    ]
    return "\r\n".join(lines) + "\r\n"


def to_table(result: QueryResult) -> str:
    """Aligned columns, then how many rows and as of when. Control characters are escaped."""
    header = [_visible(name) for name in result.columns]
    rows = [
        ["NULL" if value is None else _visible(_text(value)) for value in row]
        for row in result.rows
    ]
    right = [_is_number(kind) for kind in result.types]
    widths = [
        max([_width(title), *(_width(row[i]) for row in rows)]) for i, title in enumerate(header)
    ]
    lines = [_line(header, widths, right), "  ".join("─" * width for width in widths)]
    lines += [_line(row, widths, right) for row in rows]
    return "\n".join([*lines, "", summary(result)])


def summary(result: QueryResult) -> str:
    """``2 rows, as of shop 0/16B3780, 0.2 s ago``."""
    count = len(result.rows)
    parts = [f"{count} row{'' if count == 1 else 's'}"]
    parts += [f"as of {source} {_when(at)}" for source, at in result.as_of.items()]
    return ", ".join(parts)


def _when(at: AsOf) -> str:
    good = " (last good)" if at.last_good else ""
    return f"{format_lsn(at.position.lsn)}{good}, {_ago(at.age_s)} ago"


def _ago(seconds: float) -> str:
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if unit == "s" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _float_word(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, list):
        return "[" + ", ".join("NULL" if v is None else _text(v) for v in value) + "]"
    return str(value)


def _float_word(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _csv_field(text: str) -> str:
    if text and not any(sign in text for sign in ',"\r\n') and text == text.strip():
        return text
    return '"' + text.replace('"', '""') + '"'


def _visible(text: str) -> str:
    """Data must not be able to steer the terminal, nor break the lines of the table."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def _is_number(kind: str) -> bool:
    return (
        kind.startswith("DECIMAL")
        or kind.endswith("INT")
        or kind
        in (
            "INTEGER",
            "FLOAT",
            "DOUBLE",
        )
    )


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        for sign in text
    )


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        space = " " * (width - _width(cell))
        parts.append(space + cell if to_right else cell + space)
    return "  ".join(parts).rstrip()
