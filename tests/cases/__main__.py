"""Runs cases: ``python -m tests.cases DIR_OR_FILE…``; docs/cases.md.

One line a case, then ``N passed, N failed``. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from cdc.errors import CdcError
from cdc.jvm import SHORT_LIVED_JVM
from cdc.logging import configure_logging
from spark_jobs.session import build_session
from tests.cases.case import BadCase, find_cases
from tests.cases.runner import AT_ONCE, Outcome, run_cases
from tests.support.stack import open_stack

OWN = Path(__file__).parent / "source"
_SPARK = {"spark.driver.extraJavaOptions": " ".join(SHORT_LIVED_JVM)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cases")
    parser.add_argument("places", nargs="*", type=Path, default=[OWN], metavar="DIR_OR_FILE")
    parser.add_argument("-k", default="", metavar="TEXT", help="only cases with TEXT in their name")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument("--log-only", action="store_true", help="leave Spark and the lake out")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help="runs at a time")
    options = parser.parse_args(arguments)
    try:
        files = [file for file in find_cases(options.places) if options.k in file.stem]
        if options.list:
            print("\n".join(file.stem for file in files))
            return 0
        outcomes = _run(files, options)
    except (BadCase, CdcError) as problem:
        print(problem, file=sys.stderr)
        return 2
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"{sum(outcome.passed for outcome in outcomes)} passed, {failed} failed")
    return 1 if failed else 0


def _run(files: Sequence[Path], options: argparse.Namespace) -> list[Outcome]:
    folder = Path(tempfile.mkdtemp(prefix="cdc-cases-"))
    try:
        with (
            (folder / "apply.log").open("w") as log,
            open_stack(folder / "stack") as stack,
            nullcontext() if options.log_only else _session() as spark,
        ):
            configure_logging("cases", stream=log)
            return run_cases(files, stack, spark, folder, _tell, options.at_once)
    finally:
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _session() -> Iterator[Any]:
    spark = build_session("local[2]", "2g", _SPARK)
    try:
        yield spark
    finally:
        spark.stop()


def _tell(outcome: Outcome) -> None:
    print(outcome, flush=True)


if __name__ == "__main__":
    sys.exit(main())
