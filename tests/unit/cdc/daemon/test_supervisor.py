"""The supervisor with small real processes: back-off, exit codes, drain, commands."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from cdc.daemon.backoff import BackOffPolicy
from cdc.daemon.client import with_package_path
from cdc.daemon.supervisor import Supervisor
from cdc.errors import ConfigError
from tests.unit.cdc.daemon.children import (
    ENDS,
    REFUSES,
    REFUSES_LATER,
    STUBBORN,
    WELL,
    spec,
    starts,
)

FAST = BackOffPolicy(first=0.1, limit=0.4, healthy_after=0.0)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def make(tmp_path) -> Any:
    """A supervisor over the given specs, and what it told people."""
    notes: list[str] = []

    def build(*specs: Any, policy: BackOffPolicy = FAST) -> Supervisor:
        logs = tmp_path / "logs"
        logs.mkdir(exist_ok=True)
        return Supervisor(
            specs,
            environment=with_package_path(dict(os.environ)),
            folder=tmp_path,
            logs=logs,
            policy=policy,
            notify=notes.append,
        )

    build.notes = notes  # type: ignore[attr-defined]
    return build


def view(supervisor, name):
    return next(v for v in supervisor.views if v.name == name)


def test_ready_metrics_and_a_drained_end(make, tmp_path):
    async def scenario():
        supervisor = make(spec("capture:shop", WELL, tmp_path), spec("apply", WELL, tmp_path))
        running = asyncio.create_task(supervisor.run(10))
        assert supervisor.unready()
        await until(lambda: not supervisor.unready())
        await until(lambda: view(supervisor, "capture:shop").metrics is not None)
        assert view(supervisor, "capture:shop").metrics["records"] == 34
        await supervisor.settled(1)
        supervisor.stop()
        await running
        assert supervisor.unready()

    asyncio.run(scenario())
    assert (tmp_path / "capture.shop/drained").exists()
    assert (tmp_path / "apply/drained").exists()
    assert len(starts(tmp_path, "apply")) == 1


def test_failures_wait_longer_and_longer(make, tmp_path):
    async def scenario():
        supervisor = make(
            spec("capture:shop", ENDS, tmp_path, "1"),
            policy=BackOffPolicy(first=0.1, limit=0.4, healthy_after=60),
        )
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: len(starts(tmp_path, "capture:shop")) >= 5)
        found = view(supervisor, "capture:shop")
        assert found.error["code"] == "child_ended"
        assert found.restarts >= 4
        supervisor.stop()
        await running

    asyncio.run(scenario())
    times = [at for _pid, at in starts(tmp_path, "capture:shop")]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits[0] >= 0.1
    assert waits[1] >= 0.2
    assert all(wait >= 0.4 for wait in waits[2:4])
    assert "capture:shop has ended and is started again" in make.notes[0]


@pytest.mark.parametrize("code", [0, 3, -signal.SIGKILL])
def test_other_ends_are_retried(make, tmp_path, code):
    async def scenario():
        if code >= 0:
            child = spec("apply", ENDS, tmp_path, str(code))
        else:
            child = spec("apply", WELL, tmp_path)
        supervisor = make(child)
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: len(starts(tmp_path, "apply")) == 1)
        if code < 0:
            os.kill(starts(tmp_path, "apply")[0][0], -code)
        await until(lambda: len(starts(tmp_path, "apply")) >= 2)
        assert view(supervisor, "apply").exit_code == code
        supervisor.stop()
        await running

    asyncio.run(scenario())


def test_a_refused_child_stays_down_and_the_rest_runs(make, tmp_path):
    async def scenario():
        supervisor = make(
            spec("capture:shop", REFUSES, tmp_path), spec("capture:other", WELL, tmp_path)
        )
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: view(supervisor, "capture:shop").phase == "down")
        await until(lambda: view(supervisor, "capture:other").ready)
        await asyncio.sleep(0.6)
        assert view(supervisor, "capture:shop").error["code"] == "no_key"
        assert view(supervisor, "capture:shop").state == "errored"
        assert supervisor.unready() == ["capture:shop: down"]
        supervisor.stop()
        await running

    asyncio.run(scenario())
    assert len(starts(tmp_path, "capture:shop")) == 1
    assert make.notes == [
        "capture:shop is down: the table has no primary key\n"
        "  table: public.t\n"
        "  remedy: ALTER TABLE public.t ADD PRIMARY KEY (id);"
    ]


def test_a_stopped_source_stays_down_while_apply_goes_on(make, tmp_path):
    async def scenario():
        supervisor = make(spec("capture:shop", ENDS, tmp_path, "4"), spec("apply", WELL, tmp_path))
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: view(supervisor, "capture:shop").phase == "down")
        await until(lambda: view(supervisor, "apply").ready)
        await asyncio.sleep(0.5)
        assert not running.done()
        supervisor.stop()
        await running

    asyncio.run(scenario())
    assert len(starts(tmp_path, "capture:shop")) == 1
    assert (tmp_path / "apply/drained").exists()


def test_when_every_source_is_refused_the_daemon_ends_with_its_error(make, tmp_path):
    async def scenario():
        supervisor = make(spec("capture:shop", REFUSES, tmp_path), spec("apply", WELL, tmp_path))
        with pytest.raises(ConfigError) as caught:
            await supervisor.run(10)
        assert caught.value.code == "no_key"
        assert caught.value.table == "public.t"
        assert "ADD PRIMARY KEY" in (caught.value.remedy or "")
        assert caught.value.exit_code == 2

    asyncio.run(scenario())
    assert (tmp_path / "apply/drained").exists() or not starts(tmp_path, "apply")


def test_a_source_that_is_refused_later_does_not_end_the_daemon(make, tmp_path):
    async def scenario():
        supervisor = make(spec("capture:shop", REFUSES_LATER, tmp_path))
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: view(supervisor, "capture:shop").phase == "down")
        await asyncio.sleep(0.3)
        assert not running.done()
        assert view(supervisor, "capture:shop").error["code"] == "slot_missing"
        supervisor.stop()
        await running

    asyncio.run(scenario())


def test_what_does_not_drain_is_killed_with_its_own_children(make, tmp_path):
    async def scenario():
        supervisor = make(spec("capture:shop", STUBBORN, tmp_path))
        running = asyncio.create_task(supervisor.run(0.5))
        grandchild = tmp_path / "capture.shop/grandchild"
        await until(lambda: grandchild.exists() and grandchild.read_text() != "")
        await supervisor.settled(10)
        begun = time.monotonic()
        supervisor.stop()
        await running
        assert 0.5 <= time.monotonic() - begun < 5
        await until(lambda: not alive(int(grandchild.read_text())), 5)

    asyncio.run(scenario())
    assert not alive(starts(tmp_path, "capture:shop")[0][0])


def test_commands_reach_apply_once_per_id(make, tmp_path):
    async def scenario():
        supervisor = make(spec("apply", WELL, tmp_path))
        # Before the child is there: it waits.
        record = supervisor.submit("a", "rebuild", {"table": "s.public.t"})
        assert record.state == "queued"
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: record.finished)
        assert (record.state, record.progress) == ("done", {"rows": 1})
        assert record.result == {"rows": 2, "table": "s.public.t"}
        assert supervisor.submit("a", "rebuild", {"table": "s.public.t"}) is record
        with pytest.raises(ConfigError, match="another command"):
            supervisor.submit("a", "rebuild", {"table": "s.public.u"})
        with pytest.raises(
            ConfigError,
            match="known: apply_now, cancel, pause, rebuild, resume, snapshot, stop, tables",
        ):
            supervisor.submit("b", "erase", {})
        supervisor.submit("c", "stop", {})
        await running
        assert supervisor.submit("d", "rebuild", {}).state == "failed"

    asyncio.run(scenario())


def test_a_command_ends_when_its_child_dies(make, tmp_path):
    async def scenario():
        supervisor = make(spec("apply", WELL, tmp_path))
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: view(supervisor, "apply").ready)
        record = supervisor.submit("a", "rebuild", {"die": True})
        await until(lambda: record.finished)
        assert record.error["code"] == "child_ended"
        # The next one finds the next child.
        again = supervisor.submit("b", "rebuild", {})
        await until(lambda: again.finished)
        assert again.state == "done"
        supervisor.stop()
        await running

    asyncio.run(scenario())


def test_a_silent_child_is_not_ready(make, tmp_path, monkeypatch):
    monkeypatch.setattr("cdc.daemon.supervisor.READY_FOR_SECONDS", -1.0)

    async def scenario():
        supervisor = make(spec("apply", WELL, tmp_path))
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: view(supervisor, "apply").ready)
        assert "silent" in supervisor.unready()[0]
        supervisor.stop()
        await running

    asyncio.run(scenario())


def test_output_goes_to_the_log_without_foreign_text(make, tmp_path):
    code = "import sys\nprint('{\"event\":\"hello\"}')\nraise ValueError('c4nary-row-value')"

    async def scenario():
        supervisor = make(spec("capture:shop", code, tmp_path))
        running = asyncio.create_task(supervisor.run(5))
        await until(lambda: view(supervisor, "capture:shop").restarts >= 1)
        supervisor.stop()
        await running

    asyncio.run(scenario())
    text = (tmp_path / "logs/capture.shop.jsonl").read_text()
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert events[0] == "hello"
    assert "ValueError" in events
    assert "c4nary" not in text


def test_back_off_is_bounded():
    policy = BackOffPolicy(first=1, limit=30)
    assert [policy.wait(n) for n in (1, 2, 3, 4, 5, 6, 10_000)] == [1, 2, 4, 8, 16, 30, 30]
