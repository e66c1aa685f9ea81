"""The log's events against those that a case expects; only the order per table and key binds.

A table that was loaded after the stream began (it appeared then, or was loaded anew) has rows of
that load in place of its earlier events: there, what follows the load has to be the end of what
is expected. A table that was set aside has to have the beginning of it.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from cdc.envelope import LogRecord
from cdc.position import Position
from tests.cases.case import Case, Event, Expected, cell, line
from tests.cases.log_side import LogSide, LogView
from tests.cases.printing import printed_values
from tests.cases.problem import CaseProblem

_SHOWN = 3
#: The one type whose text in a key's JSON the server does not take: it is base64.
_BYTEA = 17


class Part(Enum):
    """Which part of the expected events a log has to have."""

    ALL = "all"
    END = "the end"
    BEGINNING = "the beginning"


@dataclass(frozen=True, slots=True)
class Logged:
    """An event of the log; ``key`` as in ``Event``."""

    op: str
    key: str | None
    unsent: frozenset[str]


def check_events(
    case: Case,
    expected: Expected,
    part: Part,
    log: LogSide,
    view: LogView,
    conninfo: Mapping[str, Any],
) -> str:
    """What is wrong with a table's events; empty if nothing is.

    Args:
        case: The case.
        expected: The table.
        part: How much of the case's events its topic has to have.
        log: To read.
        view: The log's state.
        conninfo: Of the source's database, whose server prints the keys.
    """
    if case.events is None:
        return ""
    # Messages belong to no table, and are not captured.
    wanted = [e for e in case.events if e.table == expected.id and e.op != "m"]
    records = list(log.records(view, expected.id))
    found = _logged(expected, view, records, log.truncates(view, expected.id), conninfo)
    bad = []
    both: list[Event | Logged] = [*wanted, *found]
    keys = dict.fromkeys(event.key for event in both if event.op != "t") or {None: None}
    for key in keys:
        problem = compare(_of_key(wanted, key), _of_key(found, key), part, keyed=key is not None)
        if problem:
            bad.append(f"key {'none' if key is None else _short(key)}: {problem}")
    more = len(bad) - _SHOWN
    return "; ".join(bad[:_SHOWN]) + (f"; and {more} keys more" if more > 0 else "")


def compare(
    wanted: Sequence[Event | Logged], found: Sequence[Event | Logged], part: Part, *, keyed: bool
) -> str:
    """What is wrong with the events of one key; empty if nothing is.

    Args:
        wanted: Those of the case, in order.
        found: Those of the log, in order.
        part: Which part of them the log has to have.
        keyed: Whether the table has a key.
    """
    expected, logged = _ops(wanted, keyed), _ops(found, keyed)
    if part is Part.END:
        expected, logged = expected.lstrip("r"), logged.lstrip("r")
        fits = expected.endswith(logged)
    elif part is Part.BEGINNING:
        fits = expected.startswith(logged)
    else:
        fits = expected == logged
    if not fits:
        of = "" if part is Part.ALL else f" (of which {part.value})"
        return (
            f"events {_ops(found, keyed) or 'none'}, expected {_ops(wanted, keyed) or 'none'}{of}"
        )
    if part is Part.ALL and keyed:
        return _unsent(wanted, found)
    return ""


# --- inside ---


def _logged(
    expected: Expected,
    view: LogView,
    records: Sequence[LogRecord],
    truncates: Sequence[Position],
    conninfo: Mapping[str, Any],
) -> list[Logged]:
    """Events in an order that is the log's for each key, truncates among them."""
    records = sorted(
        (record for record in records if record.op != "tombstone"),
        key=lambda record: (record.position, record.offset),
    )
    keys = _keys(expected, view, records, conninfo)
    events: list[Logged] = []
    rest = list(truncates)
    for record in records:
        while rest and rest[0] < record.position:
            events.append(Logged("t", None, frozenset()))
            rest.pop(0)
        events.append(Logged(record.op, keys.get(record.key), frozenset(record.unchanged)))
    return [*events, *(Logged("t", None, frozenset()) for _ in rest)]


def _keys(
    expected: Expected,
    view: LogView,
    records: Iterable[LogRecord],
    conninfo: Mapping[str, Any],
) -> dict[bytes, str]:
    """The line of each record key, its values as the server prints them."""
    if not expected.key:
        return {}
    record = view.control.tables[expected.id]
    columns = {
        column.name: column.type_oid
        for schema in view.control.schemas.get((expected.id, record.load), {}).values()
        for column in schema.columns
    }
    parsed = {key: orjson.loads(key) for key in dict.fromkeys(r.key for r in records)}
    for values in parsed.values():
        if set(values) != set(expected.key):
            raise CaseProblem(
                f"keys of {expected.id} have the columns {', '.join(values)}, expected "
                f"{', '.join(expected.key)}"
            )
    oids = [columns[name] for name in expected.key]
    rows = [
        [_value(oid, values[name]) for name, oid in zip(expected.key, oids, strict=True)]
        for values in parsed.values()
    ]
    texts = printed_values(conninfo, oids, rows)
    return {key: line([cell(t) for t in row]) for key, row in zip(parsed, texts, strict=True)}


def _value(type_oid: int, value: Any) -> Any:
    return binascii.a2b_base64(value) if type_oid == _BYTEA and value is not None else value


def _of_key(events: Iterable[Event | Logged], key: str | None) -> list[Event | Logged]:
    return [event for event in events if event.key == key or event.op == "t"]


def _ops(events: Sequence[Event | Logged], keyed: bool) -> str:
    ops = "".join(event.op for event in events)
    # Without a key an update is the end of one row and the beginning of another.
    return ops if keyed else ops.replace("u", "dc")


def _unsent(wanted: Sequence[Event | Logged], found: Sequence[Event | Logged]) -> str:
    """No event claims that the stream left out what it did carry."""
    for one, other in zip(wanted, found, strict=True):
        if one.op == "u" and other.unsent - one.unsent:
            said = ", ".join(sorted(other.unsent - one.unsent))
            return f"the log says that an update came without {said}"
    return ""


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
