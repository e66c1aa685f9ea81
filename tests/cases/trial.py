"""One run of a case: its database, its capture process, its log, and what came of it.

Every case is run in two ways. PLAIN: capture runs through; the replica is built from the load,
merged with what came after it, and rebuilt from offset zero. KILLED: capture is killed and
started again between the items of the stream, and queries answer from the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import psycopg
from confluent_kafka.admin import AdminClient

from cdc.errors import CdcError, EnvironmentProblem
from cdc.names import default_slot
from tests.cases.capture_process import CaptureProcess
from tests.cases.case import Case
from tests.cases.lake_side import LakeSide
from tests.cases.log_side import LogSide, LogView
from tests.cases.problem import CaseProblem
from tests.cases.project import PROJECT, chosen_tables, write_project
from tests.cases.source_side import SlotState, SourceSide, create_database, drop_database
from tests.cases.verdict import Findings, Verdict, refused
from tests.support.stack import Stack

_WAIT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.2
#: Looks of the watch after which it has told, and had a load begun for, what it saw.
_LOOKS: Final = 3


class Mode(Enum):
    """How a case is run."""

    PLAIN = "plain"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Place:
    """What all runs share.

    Args:
        stack: The servers.
        lake: Of all cases; None: nothing but the log is looked at.
        folder: For what a run writes.
        prefix: Of the topics.
        admin: Of the broker.
    """

    stack: Stack
    lake: LakeSide | None
    folder: Path
    prefix: str
    admin: AdminClient


class Trial:
    """One run of a case.

    Args:
        case: The case.
        mode: How it is run.
        number: Tells cases apart where names must be short.
        place: What all runs share.
    """

    def __init__(self, case: Case, mode: Mode, number: int, place: Place) -> None:
        self._case, self._mode, self._place = case, mode, place
        # Names of sources are short, and slots and databases are the server's.
        self._source = f"c{number}{mode.value[0]}"
        self._database = f"case_{number}_{mode.value}"
        self._slot = default_slot(PROJECT, self._source)
        self._folder = place.folder / f"{case.id}.{mode.value}"
        self._capture: CaptureProcess
        self._side: SourceSide
        self._log: LogSide

    def run(self) -> list[str]:
        """Run it; what is wrong, nothing if all is as expected."""
        self._folder.mkdir()
        try:
            with ExitStack() as cleanup:
                self._prepare(cleanup)
                return self._run()
        except CaseProblem as problem:
            return [str(problem)]
        except CdcError as error:
            return [f"{error.code}: {error}".replace("\n", " ")]
        except psycopg.Error as error:
            return [f"Postgres: {error.sqlstate} {error.diag.message_primary or error}"]

    # --- before and after ---

    def _prepare(self, cleanup: ExitStack) -> None:
        place = self._place
        conninfo = create_database(place.stack.postgres, self._case, self._database)
        cleanup.callback(drop_database, place.stack.postgres, self._database)
        self._side = SourceSide(self._case, conninfo)
        cleanup.callback(self._side.close)
        self._side.set_up()
        self._config = write_project(
            self._folder,
            source=self._source,
            conninfo=conninfo,
            bootstrap=place.stack.bootstrap,
            prefix=place.prefix,
            lake=place.folder / "lake",
            tables=chosen_tables(self._case, conninfo),
        )
        self._log = cleanup.enter_context(
            LogSide(place.stack.bootstrap, place.prefix, self._source)
        )
        cleanup.callback(self._remove_topics)
        self._capture = CaptureProcess(self._config, self._source, often=self._case.alters)
        cleanup.callback(self._capture.kill)

    def _remove_topics(self) -> None:
        """Hundreds of cases share the broker."""
        own = f"{self._place.prefix}{self._source}."
        admin = self._place.admin
        if topics := [
            name for name in admin.list_topics(timeout=20).topics if name.startswith(own)
        ]:
            for deleted in admin.delete_topics(topics).values():
                deleted.result(20)

    # --- the run ---

    def _run(self) -> list[str]:
        began = self._start()
        if began is None:
            return refused(self._case, self._capture)
        lake = self._place.lake
        if self._mode is Mode.KILLED:
            self._stream_and_kill()
        else:
            if lake is not None:
                lake.add(self._source, self._config)
                lake.apply(self._source)
            for item in self._case.stream:
                self._side.run_item(item)
        view = self._settle()
        # What it was has been read; nothing may lock the source's tables from here on.
        self._capture.kill()
        findings = Findings(self._case, self._capture, self._side, self._log, began, view)
        verdict = Verdict(findings, self._source, self._config)
        if lake is None or self._mode is Mode.KILLED:
            return verdict.of_log()
        return verdict.of_lake(lake)

    def _start(self) -> LogView | None:
        """Start capture and wait until it streams; None: it refuses to."""
        around = self._case.during_start
        if around is not None:
            self._side.run_second(around.before)
        self._capture.start()
        if around is not None:
            self._until(self._start_asked, "the start")
            if around.blocks and self._streaming():
                raise CaseProblem("capture streams although a transaction is open from before it")
            self._side.run_second(around.after)
        self._until(self._streaming, "capture to stream")
        view = self._log.view()
        return None if self._capture.down is not None and view is None else view

    def _stream_and_kill(self) -> None:
        """The stream, with capture killed and started again between any two items."""
        for number, item in enumerate(self._case.stream):
            if number % 2 == 1:
                # The item before it is just being read; this one is written while nobody reads.
                self._capture.kill()
                self._side.run_item(item)
                self._capture.start()
                self._until(self._streaming, "capture to stream again")
                continue
            if number:
                # The item before it is in the log.
                self._until_has(self._side.flushed())
                self._restart()
            self._side.run_item(item)
        if len(self._case.stream) == 1:
            self._restart()

    def _restart(self) -> None:
        self._capture.kill()
        self._capture.start()
        self._until(self._streaming, "capture to stream again")

    def _settle(self) -> LogView:
        """Wait until the log has all that the source holds, and tables are what they will be."""
        self._until_has(self._side.flushed())
        seen, looks = None, self._capture.looks()
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            view = self._log.view()
            assert view is not None
            outline = view.outline()
            if outline != seen:
                seen, looks = outline, self._capture.looks()
            enough = self._capture.looks() - looks >= (_LOOKS if self._may_change(view) else 0)
            if self._capture.down is not None or (enough and not view.loading):
                return view
            if time.monotonic() > deadline:
                raise CaseProblem(f"waited in vain for {', '.join(view.loading) or 'the watch'}")
            self._capture.tend()
            time.sleep(_POLL_SECONDS)

    def _may_change(self, view: LogView) -> bool:
        """Whether the watch may still have something to tell, or to mend."""
        if not self._case.alters:
            return False
        known = all(table.id in view.tables for table in self._case.tables)
        return not self._case.from_log or not known or bool(view.aside)

    # --- questions ---

    def _until_has(self, lsn: int) -> None:
        def there() -> bool:
            view = self._log.view()
            return view is not None and view.frontier.record.end_lsn >= lsn

        self._until(there, f"the log to reach {lsn:X}")

    def _start_asked(self) -> bool:
        """The slot is being made."""
        return self._side.slot(self._slot) is not None

    def _streaming(self) -> bool:
        """Capture reads the slot, and all tables are loaded or set aside."""
        read = self._side.slot(self._slot) is SlotState.READ
        if not self._capture.running or not read:
            return False
        view = self._log.view()
        return view is not None and not view.loading

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; what capture ends for by itself ends the wait, too."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            with suppress(EnvironmentProblem):
                if condition():
                    return
            self._capture.tend()
            if self._capture.down is not None:
                return
            if time.monotonic() > deadline:
                raise CaseProblem(f"waited in vain for {what}{self._why()}")
            time.sleep(_POLL_SECONDS)

    def _why(self) -> str:
        words = self._capture.last_words()
        view = self._log.view()
        states = "" if view is None else f" ({', '.join(view.loading)})"
        return states + (f"; capture: {words.get('code')}: {words.get('message')}" if words else "")
