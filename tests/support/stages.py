"""Pytest plugin: the time and the outcome of each stage (folder of tests/) of a run."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

_OUTCOMES = ("passed", "failed", "error", "skipped")


class Stages:
    """Counts outcomes and wall time by stage, and says when the next one begins."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._started: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._outcomes: dict[str, Counter[str]] = {}
        self._reporter: pytest.TerminalReporter | None = None

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find the reporter, to which the stages are announced."""
        self._reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note the stage of the test that starts."""
        stage = _stage(nodeid)
        now = time.monotonic()
        if stage not in self._started:
            self._started[stage] = now
            self._outcomes[stage] = Counter()
            if self._reporter is not None:
                self._reporter.write_sep("-", f"stage: {stage}")

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of a test."""
        stage = _stage(report.nodeid)
        self._ended[stage] = time.monotonic()
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome
            if outcome == "failed" and report.when != "call":
                self._outcomes[stage]["error"] += 1
            else:
                self._outcomes[stage][outcome] += 1

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print one line for each stage."""
        if not self._started:
            return
        terminalreporter.write_sep("=", "stages")
        for stage, started in self._started.items():
            seconds = self._ended.get(stage, started) - started
            counts = self._outcomes[stage]
            said = ", ".join(f"{counts[name]} {name}" for name in _OUTCOMES if counts[name])
            terminalreporter.write_line(f"{stage:<14} {seconds:7.1f} s  {said}")


def _stage(nodeid: str) -> str:
    parts = nodeid.split("::", 1)[0].split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else parts[0]
