"""What is wrong with a run of a case, once its log stands still."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from cdc.config import load_config
from cdc.control import TableRecord
from cdc.errors import CdcError
from cdc.lake import KEY_COLUMN, LSN_COLUMN
from cdc.names import TableId, quote_ident, source_column
from cdc.query.run import run_query
from cdc.states import ERRORED
from tests.cases.capture_process import CaptureProcess
from tests.cases.case import Case, Expected
from tests.cases.events import Part, check_events
from tests.cases.lake_side import LakeSide
from tests.cases.log_side import LogSide, LogView
from tests.cases.printing import Derived, final_rows, printed
from tests.cases.problem import CaseProblem
from tests.cases.rows import difference, lines_of
from tests.cases.source_side import SourceSide

_HIDDEN: Final = frozenset((LSN_COLUMN, KEY_COLUMN))


@dataclass(frozen=True, slots=True)
class Findings:
    """What a run has left.

    Args:
        case: The case.
        capture: Its capture, which has ended.
        side: The source's side.
        log: To read the log.
        began: The log when the stream began.
        view: The log at the end.
    """

    case: Case
    capture: CaptureProcess
    side: SourceSide
    log: LogSide
    began: LogView
    view: LogView


def refused(case: Case, capture: CaptureProcess) -> list[str]:
    """What is wrong when capture refuses to start; nothing if the case accepts that."""
    words = capture.last_words() or {}
    said = " ".join(str(words.get(name) or "") for name in ("table", "message", "remedy"))
    if len(case.tables) > 1:
        return [f"capture does not start, and other tables do not go on: {_one_line(said)}"]
    problem = _unaccepted(case, said)
    return [f"capture does not start: {problem}"] if problem else []


class Verdict:
    """Compares what was derived from a log with what a case expects.

    Args:
        findings: Of the run.
        source: The source's name.
        config: The project's cdc.yaml.
    """

    def __init__(self, findings: Findings, source: str, config: Path) -> None:
        self._found = findings
        self._source = source
        self._config = config
        self._problems: list[str] = []
        self._lake_errors: dict[str, CdcError] = {}

    def of_log(self) -> list[str]:
        """The answer of a query, and the events."""
        tables = self._ready()
        self._each("query", tables, self._query)
        self._check_events()
        return self._problems

    def of_lake(self, lake: LakeSide) -> list[str]:
        """The replica, merged with what came after the load; the events; and a rebuild."""
        tables = self._ready()
        self._lake_errors = lake.apply(self._source)
        self._each("replica", tables, lambda table: self._replica(lake, table))
        self._check_events()
        if self._found.case.from_log and not self._problems:
            self._each("rebuilt", tables, lambda table: self._rebuilt(lake, table))
        return self._problems

    # --- tables ---

    def _ready(self) -> list[Expected]:
        """The tables whose rows have to be equal; the others are judged."""
        case, view = self._found.case, self._found.view
        tables = []
        for table in case.tables:
            record = view.tables.get(table.id)
            if record is None:
                self._problems.append(f"{table.id} is not captured{self._ended()}")
            elif record.state != ERRORED:
                tables.append(table)
            elif problem := _unaccepted(case, _report(record)):
                self._problems.append(f"{table.id} was set aside: {problem}")
        return tables

    def _each(
        self, what: str, tables: list[Expected], derive: Callable[[TableId], Derived | None]
    ) -> None:
        for table in tables:
            try:
                problem = self._rows(table, derive(table.id))
            except CaseProblem as bad:
                problem = str(bad)
            except CdcError as error:
                problem = _unaccepted(self._found.case, str(error))
            if problem:
                self._problems.append(f"{what} of {table.id}: {problem}{self._ended()}")

    def _rows(self, table: Expected, derived: Derived | None) -> str:
        side = self._found.side
        if derived is None:
            return "not there"
        if absent := [name for name in table.columns if name not in derived.columns]:
            return f"no column {', '.join(absent[:5])}"
        if table.final_rows is None:
            return ""
        found = printed(side.conninfo, table.id, table.final_rows, derived)
        wanted = None
        if side.went_further:
            wanted = lines_of(final_rows(side.conninfo, table.final_rows))
        return difference(table, lines_of(found), wanted)

    # --- what is derived ---

    def _query(self, table: TableId) -> Derived:
        name = ".".join((self._source, quote_ident(table.schema), quote_ident(table.table)))
        answer = run_query(load_config(self._config), f"select * from {name}")
        texts = [n for n, t in zip(answer.columns, answer.types, strict=True) if t == "VARCHAR"]
        return _by_source_names(answer.columns, texts, answer.rows)

    def _replica(self, lake: LakeSide, table: TableId) -> Derived | None:
        error = self._lake_errors.get(f"{self._source}.{table}")
        if error is not None:
            raise error
        found = lake.replica(self._source, table)
        return None if found is None else _derived(found)

    def _rebuilt(self, lake: LakeSide, table: TableId) -> Derived | None:
        lake.rebuild(self._source, table)
        return self._replica(lake, table)

    # --- the log ---

    def _check_events(self) -> None:
        found = self._found
        for table in found.case.tables:
            record = found.view.tables.get(table.id)
            if record is None or record.topic_id is None:
                continue
            try:
                problem = check_events(
                    found.case,
                    table,
                    self._part(record),
                    found.log,
                    found.view,
                    found.side.conninfo,
                )
            except CaseProblem as bad:
                problem = str(bad)
            if problem:
                self._problems.append(f"log of {table.id}: {problem}")

    def _part(self, record: TableRecord) -> Part:
        before = self._found.began.tables.get(record.id)
        if record.state == ERRORED:
            return Part.BEGINNING
        return Part.ALL if before is not None and before.load == record.load else Part.END

    def _ended(self) -> str:
        if self._found.capture.down is None:
            return ""
        words = self._found.capture.last_words() or {}
        return f" (capture ended: {words.get('code')}: {_one_line(str(words.get('message')))})"


def _derived(table: pa.Table) -> Derived:
    names = [name for name in table.column_names if name not in _HIDDEN]
    table = table.select(names)
    texts = [f.name for f in table.schema if _is_text(f.type)]
    columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
    return _by_source_names(names, texts, list(zip(*columns, strict=True)))


def _by_source_names(
    names: Sequence[str], texts: Sequence[str], rows: list[tuple[Any, ...]]
) -> Derived:
    return Derived(tuple(map(source_column, names)), frozenset(map(source_column, texts)), rows)


def _is_text(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(kind) for is_kind in kinds)


def _report(record: TableRecord) -> str:
    return f"{record.reason or ''} {record.remedy or ''}"


def _unaccepted(case: Case, said: str) -> str:
    """Why a report is not what the case accepts; empty if it is."""
    if not case.reported:
        return _one_line(said)
    absent = [word for word in case.must_name if not _names(said, word)]
    if absent:
        return f"the message does not name {', '.join(absent)}: {_one_line(said)}"
    return ""


def _names(said: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", said) is not None


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else text[:399] + "…"
