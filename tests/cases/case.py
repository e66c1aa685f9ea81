"""A case as its file says it. Pure; docs/cases.md describes the format.

A file that says what is not understood here is refused: what is not run must not pass.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cdc.names import TableId

PUBLICATION: Final = "corpus_pub"
_LONGEST_CELL: Final = 200
_ALTERS: Final = re.compile(r"\b(alter|create|drop|refresh|truncate)\b", re.IGNORECASE)
_NOT_SENT: Final = "not on the wire: "

#: Text, NULL, or (for a long text) its length and hash.
Cell = str | None | dict[str, Any]


class BadCase(ValueError):
    """A file is not a case, or not one that this runner understands."""


@dataclass(frozen=True, slots=True)
class CopyIn:
    """``COPY … FROM STDIN`` and what is sent."""

    sql: str
    data: str


Statement = str | CopyIn


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements in one transaction.

    Args:
        statements: In order.
        rollback: It ends in a rollback.
        fails: The last statement fails with this SQLSTATE.
    """

    statements: tuple[Statement, ...]
    rollback: bool = False
    fails: str | None = None


@dataclass(frozen=True, slots=True)
class Autocommit:
    """Statements outside of a transaction block."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Concurrent:
    """Two sessions take their next statement as ``order`` (of a and b) says, all of it ``repeat``
    times."""

    a: tuple[Statement, ...]
    b: tuple[Statement, ...]
    order: str
    repeat: int


Item = Transaction | Autocommit | Concurrent


@dataclass(frozen=True, slots=True)
class DuringStart:
    """What a second session does before, and then while, capture starts.

    Args:
        before: Before it is started.
        after: When the start was asked for and is not finished.
        blocks: A slot cannot become ready before ``after``.
    """

    before: tuple[Statement, ...]
    after: tuple[Statement, ...]
    blocks: bool


@dataclass(frozen=True, slots=True)
class Expected:
    """What a table has to be in the end.

    Args:
        id: The table.
        key: Its key columns; empty: no key.
        final_rows: A query on the source, every column of which is text.
        columns: Names of its columns.
        rows: Canonical lines (see ``line``), or None.
        digest: Number of rows and SHA-256 over their sorted lines, instead of ``rows``.
    """

    id: TableId
    key: tuple[str, ...]
    final_rows: str | None
    columns: tuple[str, ...]
    rows: tuple[str, ...] | None
    digest: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the log.

    Args:
        op: ``r``, ``c``, ``u``, ``d``, ``t`` or ``m``.
        table: That it is of.
        key: Canonical line of its key; None: without one.
        unsent: Columns that the update did not carry.
    """

    op: str
    table: TableId
    key: str | None
    unsent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Case:
    """One case; the keys of its file are described in docs/cases.md."""

    id: str
    pg_min: int
    extensions: tuple[str, ...]
    encoding: str | None
    settings: Mapping[str, str]
    publication: str
    setup: tuple[Statement, ...]
    during_start: DuringStart | None
    stream: tuple[Item, ...]
    tables: tuple[Expected, ...]
    reported: bool
    must_name: tuple[str, ...]
    from_log: bool
    events: tuple[Event, ...] | None

    @property
    def alters(self) -> bool:
        """Whether its stream may do what only the catalog shows."""
        return any(
            isinstance(statement, str) and _ALTERS.search(statement)
            for item in self.stream
            for statement in statements_of(item)
        )

    @property
    def two_phase(self) -> bool:
        """Whether it prepares transactions, whose names belong to the whole server."""
        return any(
            isinstance(statement, str) and is_prepare(statement)
            for item in self.stream
            for statement in statements_of(item)
        )


def statements_of(item: Item) -> tuple[Statement, ...]:
    """All statements of an item."""
    return item.a + item.b if isinstance(item, Concurrent) else item.statements


def is_prepare(statement: Statement) -> bool:
    """Whether it is the first half of a two-phase commit."""
    return isinstance(statement, str) and statement.lower().startswith("prepare transaction")


def cell(text: str | None) -> Cell:
    """A cell as files write it: a long text by its length and hash."""
    if text is None or len(text) <= _LONGEST_CELL:
        return text
    # What is no valid text still has bytes.
    raw = text.encode("utf-8", "surrogateescape")
    return {"len": len(text), "sha256": hashlib.sha256(raw).hexdigest()}


def line(cells: Sequence[Cell]) -> str:
    """A row as one line of compact JSON: equal exactly when the rows are."""
    return json.dumps(list(cells), ensure_ascii=False, separators=(",", ":"))


def digest(lines: Sequence[str]) -> tuple[int, str]:
    """Number of rows and SHA-256 over their sorted lines."""
    text = "".join(f"{one}\n" for one in sorted(lines))
    return len(lines), hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def find_cases(places: Sequence[Path]) -> list[Path]:
    """The files of all folders and files given, each once, a folder's in the order of their names.

    Raises:
        BadCase: Nothing is there, or two of them have one name.
    """
    found: dict[str, Path] = {}
    for place in places:
        files = sorted(place.glob("*.yaml")) if place.is_dir() else [place]
        if not files or not all(file.is_file() for file in files):
            raise BadCase(f"{place}: no case there")
        for file in files:
            other = found.setdefault(file.stem, file)
            if other.resolve() != file.resolve():
                raise BadCase(f"{file}: {other} has the same name; run them one after the other")
    return list(found.values())


def load_case(path: Path) -> Case:
    """Read a case.

    Raises:
        BadCase: What is wrong with it.
    """
    try:
        raw = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError) as problem:
        raise BadCase(f"not YAML: {str(problem).splitlines()[0]}") from None
    try:
        return _case(raw)
    except (KeyError, TypeError, AttributeError) as problem:
        raise BadCase(f"not a case: {type(problem).__name__} {problem}") from None


# --- inside ---

_TOP: Final = {
    "id", "title", "area", "origin", "needs", "setup", "during_start", "stream", "expect",
}  # fmt: skip
_NEEDS: Final = {"pg_min", "extension", "encoding", "settings", "publication"}
_TABLE: Final = {"table", "schema", "key", "final_rows", "columns", "rows", "digest"}
_EXPECT: Final = _TABLE | {"also", "accept", "from_log", "error", "events", "notes"}
_EVENT: Final = {"op", "key", "table", "schema", "note"}


def _known(raw: Mapping[str, Any], keys: set[str], what: str) -> None:
    if unknown := set(raw) - keys:
        raise BadCase(f"{what} has unknown keys: {', '.join(sorted(map(str, unknown)))}")


def _case(raw: Any) -> Case:
    _known(raw, _TOP, "the case")
    needs, expect = raw.get("needs") or {}, raw["expect"]
    _known(needs, _NEEDS, "needs")
    _known(expect, _EXPECT, "expect")
    accept = set(expect.get("accept") or ["equal"])
    if "equal" not in accept or accept - {"equal", "reported"}:
        raise BadCase(f"accept is {sorted(accept)}")
    extension = needs.get("extension") or []
    main = _expected(expect)
    also = []
    for other in expect.get("also") or []:
        _known(other, _TABLE, "a table of also")
        also.append(_expected(other))
    events = expect.get("events")
    return Case(
        id=raw["id"],
        pg_min=int(needs.get("pg_min", 14)),
        extensions=(extension,) if isinstance(extension, str) else tuple(extension),
        encoding=needs.get("encoding"),
        settings={name: str(value) for name, value in (needs.get("settings") or {}).items()},
        publication=needs.get("publication", "for all tables"),
        setup=_statements(raw["setup"]),
        during_start=_during_start(raw.get("during_start")),
        stream=tuple(_item(item) for item in raw["stream"]),
        tables=(main, *also),
        reported="reported" in accept,
        must_name=tuple((expect.get("error") or {}).get("must_name") or ()),
        from_log=expect.get("from_log", True),
        events=None if events is None else tuple(_event(one, main.id) for one in events),
    )


def _expected(raw: Mapping[str, Any]) -> Expected:
    rows, digested = raw.get("rows"), raw.get("digest")
    return Expected(
        TableId(raw.get("schema", "public"), raw["table"]),
        tuple(raw.get("key") or ()),
        raw.get("final_rows"),
        tuple(raw["columns"]),
        None if rows is None else tuple(line([_plain(one) for one in row]) for row in rows),
        None if digested is None else (digested["count"], digested["sha256"]),
    )


def _plain(value: Any) -> Cell:
    if value is None or isinstance(value, str):
        return value
    return {"len": value["len"], "sha256": value["sha256"]}


def _event(raw: Mapping[str, Any], main: TableId) -> Event:
    _known(raw, _EVENT, "an event")
    if raw["op"] not in ("r", "c", "u", "d", "t", "m"):
        raise BadCase(f"an event has the op {raw['op']!r}")
    note, key = raw.get("note") or "", raw.get("key")
    unsent = note.removeprefix(_NOT_SENT).split(", ") if note.startswith(_NOT_SENT) else ()
    table = TableId(raw.get("schema", "public"), raw["table"]) if "table" in raw else main
    text = None if key is None else line([_plain(one) for one in key])
    return Event(raw["op"], table, text, frozenset(unsent))


def _during_start(raw: Any) -> DuringStart | None:
    if raw is None:
        return None
    _known(raw, {"before", "after", "blocks"}, "during_start")
    return DuringStart(
        _statements(raw.get("before") or ()),
        _statements(raw.get("after") or ()),
        raw.get("blocks", True),
    )


def _item(raw: Any) -> Item:
    if isinstance(raw, list):
        return Transaction(_statements(raw))
    if raw.get("concurrent"):
        _known(raw, {"concurrent", "a", "b", "order", "repeat"}, "a concurrent item")
        item = Concurrent(
            _statements(raw["a"]), _statements(raw["b"]), raw["order"], int(raw.get("repeat", 1))
        )
        if sorted(item.order) != ["a"] * len(item.a) + ["b"] * len(item.b):
            raise BadCase("the order of a concurrent item does not use every statement once")
        return item
    if "autocommit" in raw:
        _known(raw, {"autocommit"}, "an autocommit item")
        return Autocommit(_statements(raw["autocommit"]))
    _known(raw, {"txn", "rollback", "fails"}, "an item of stream")
    fails = raw.get("fails")
    return Transaction(
        _statements(raw["txn"]), bool(raw.get("rollback")), None if fails is None else str(fails)
    )


def _statements(raw: Any) -> tuple[Statement, ...]:
    return tuple(_each(raw))


def _each(raw: Any) -> Iterator[Statement]:
    for one in raw:
        if isinstance(one, str):
            yield one
        else:
            _known(one, {"copy", "data"}, "a statement")
            yield CopyIn(one["copy"], one["data"])
