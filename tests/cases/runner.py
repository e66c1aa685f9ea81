"""Many cases at once over one Postgres, one broker and one Spark session."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql

from cdc.lakelock import hold_lake_lock
from spark_jobs.session import jvm_pid
from tests.cases.case import BadCase, Case, load_case
from tests.cases.lake_side import LakeSide
from tests.cases.trial import Mode, Place, Trial
from tests.support.stack import Postgres, Stack

#: Most of a run's time is waiting: for the server's keepalive, for a worker, for the watch.
AT_ONCE: Final = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case.

    Args:
        name: Of the case.
        problems: What is wrong; none: it passes.
        seconds: That its runs took.
        skipped: Why it cannot be run here; None: it was.
    """

    name: str
    problems: tuple[str, ...]
    seconds: float
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it ran and nothing is wrong."""
        return not self.problems and self.skipped is None

    def __str__(self) -> str:
        if self.skipped is not None:
            return f"SKIP {self.name}: {self.skipped}"
        if self.passed:
            return f"PASS {self.name} ({self.seconds:.1f} s)"
        return f"FAIL {self.name}: {' | '.join(self.problems)} ({self.seconds:.1f} s)"


def run_cases(
    files: Sequence[Path],
    stack: Stack,
    spark: Any,
    folder: Path,
    tell: Callable[[Outcome], None] = lambda outcome: None,
    at_once: int = AT_ONCE,
) -> list[Outcome]:
    """Run cases.

    Args:
        files: Of the cases.
        stack: The servers.
        spark: The session; None: the lake is left out, queries answer from the log.
        folder: For what the runs write.
        tell: Told of each case when it is done.
        at_once: Runs at the same time.

    Returns:
        The outcomes, in the order in which they came.
    """
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        tell(outcome)

    cases: list[Case] = []
    version = _version(stack.postgres)
    for file in files:
        try:
            case = load_case(file)
        except BadCase as problem:
            done(Outcome(file.stem, (str(problem),), 0.0))
            continue
        if case.pg_min > version:
            why = f"needs Postgres {case.pg_min}, the server is {version}"
            done(Outcome(case.id, (), 0.0, skipped=why))
        else:
            cases.append(case)
    _set_server(stack.postgres, cases)
    prefix = f"cases-{uuid.uuid4().hex[:8]}."
    with ExitStack() as cleanup:
        lake = None
        if spark is not None:
            lock = cleanup.enter_context(hold_lake_lock(folder / "lake"))
            lock.record_jvm(jvm_pid(spark))
            lake = LakeSide(spark, stack.bootstrap, prefix, folder / "lake")
            cleanup.enter_context(lake)
        pool = cleanup.enter_context(ThreadPoolExecutor(at_once, thread_name_prefix="case"))
        admin = AdminClient({"bootstrap.servers": stack.bootstrap})
        _run_all(cases, Place(stack, lake, folder, prefix, admin), pool, done)
    return outcomes


def _run_all(
    cases: Sequence[Case], place: Place, pool: ThreadPoolExecutor, done: Callable[[Outcome], None]
) -> None:
    # Names of prepared transactions belong to the server.
    two_phase = Lock()
    futures: dict[Future[tuple[list[str], float]], Case] = {}
    told: set[str] = set()
    for number, case in enumerate(cases):
        for mode in Mode:
            trial = Trial(case, mode, number, place)
            alone = two_phase if case.two_phase else nullcontext()
            futures[pool.submit(_timed, trial, alone)] = case
    for future in as_completed(futures):
        case = futures[future]
        runs = [run for run, of in futures.items() if of is case]
        if all(run.done() for run in runs) and case.id not in told:
            told.add(case.id)
            done(_outcome(case, runs))


def _timed(trial: Trial, alone: Any) -> tuple[list[str], float]:
    with alone:
        started = time.monotonic()
        return trial.run(), time.monotonic() - started


def _outcome(case: Case, runs: Sequence[Future[tuple[list[str], float]]]) -> Outcome:
    """One outcome of the runs of a case, given in the order of ``Mode``."""
    modes: dict[str, list[str]] = {}
    seconds = 0.0
    for mode, run in zip(Mode, runs, strict=True):
        error = run.exception()
        if error is None:
            found, took = run.result()
            seconds += took
        else:
            found = [f"the runner failed: {type(error).__name__}: {error}"]
        for problem in found:
            modes.setdefault(problem, []).append(mode.value)
    problems = (f"{' and '.join(told)}: {problem}" for problem, told in modes.items())
    return Outcome(case.id, tuple(problems), seconds)


def _version(postgres: Postgres) -> int:
    with psycopg.connect(**postgres.conninfo()) as connection:
        return connection.info.server_version // 10_000


def _set_server(postgres: Postgres, cases: Sequence[Case]) -> None:
    """Give the server the settings that cases need, with a restart if it has not got them."""
    wanted: dict[str, str] = {}
    for case in cases:
        for name, value in case.settings.items():
            known = wanted.get(name)
            if known is None or (value.isdigit() and known.isdigit() and int(value) > int(known)):
                wanted[name] = value
            elif not value.isdigit() and value != known:
                raise BadCase(f"cases need {name} to be {known} and {value}")
    with psycopg.connect(**postgres.conninfo(), autocommit=True) as connection:
        changed = False
        for name, value in wanted.items():
            row = connection.execute("select current_setting(%s)", (name,)).fetchone()
            now = "" if row is None else str(row[0])
            if now == value or (now.isdigit() and value.isdigit() and int(now) >= int(value)):
                continue
            connection.execute(
                sql.SQL("alter system set {} = {}").format(sql.Identifier(name), sql.Literal(value))
            )
            changed = True
    if changed:
        postgres.restart()
