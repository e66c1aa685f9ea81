"""The daemon as a process: its files, its end, and what happens when it is killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from cdc.config import Config, load_config
from cdc.daemon.client import (
    daemon_status,
    send_command,
    stop_daemon,
    wait_for_command,
    with_package_path,
)
from cdc.daemon.record import is_locked, running_daemon
from cdc.errors import CdcError, EnvironmentProblem
from tests.unit.cdc.daemon.children import starts

#: Runs the daemon with other children than capture and apply.
DAEMON = """
import sys
from pathlib import Path
from cdc.config import load_config
from cdc.daemon.run import run_daemon
from cdc.errors import CdcError
from tests.unit.cdc.daemon import children
config = load_config(sys.argv[1])
specs = [children.spec(name, getattr(children, code), config.root)
         for name, code in (pair.split("=") for pair in sys.argv[2:])]
try:
    run_daemon(config, specs=specs, on_started=lambda url: print("started", url, flush=True))
except CdcError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""

CONFIG = """\
project: daemontest
log: {bootstrap_servers: "127.0.0.1:1"}
sources:
  shop:
    kind: postgres
    host: 127.0.0.1
    database: shop
    user: cdc
    password: {env: DAEMON_TEST_PASSWORD}
    tables: [public.t]
"""


@pytest.fixture
def config(tmp_path) -> Config:
    (tmp_path / "cdc.yaml").write_text(CONFIG)
    return load_config(tmp_path / "cdc.yaml")


@pytest.fixture
def start(config):
    """Starts daemons in the foreground; kills what a test leaves."""
    processes: list[subprocess.Popen[str]] = []

    def run(*children: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(config.path), *children],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=with_package_path(dict(os.environ)),
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_life_from_start_to_stop(config, start):
    assert running_daemon(config) is None
    process = start("capture:shop=WELL", "apply=WELL")
    assert process.stdout.readline().startswith("started http://127.0.0.1:")
    daemon = running_daemon(config)
    assert daemon is not None
    assert daemon.pid == process.pid
    record = json.loads((config.state_dir / "daemon.json").read_text())
    assert set(record) == {"pid", "http", "token_file", "started"}
    assert mode(config.state_dir) == 0o700
    assert mode(Path(daemon.token_file)) == 0o600
    assert mode(config.state_dir / "daemon.json") == 0o600

    assert get(f"{daemon.http}/health")[0] == 200
    wait_until(lambda: get(f"{daemon.http}/ready")[0] == 200)
    assert 'cdc_source_lag_bytes{source="shop"} 12.0' in get(f"{daemon.http}/metrics")[1]
    assert get(f"{daemon.http}/v1/status")[0] == 401
    assert [child["name"] for child in daemon_status(daemon)["children"]] == [
        "capture:shop",
        "apply",
    ]

    seen: list[dict[str, Any]] = []
    asked = send_command(daemon, "rebuild", {"table": "shop.public.t"}, command_id="r1")
    assert wait_for_command(daemon, asked, seen.append) == {"rows": 2, "table": "shop.public.t"}
    # Asked again with the same id, it is not done again.
    again = send_command(daemon, "rebuild", {"table": "shop.public.t"}, command_id="r1")
    assert again["state"] == "done"

    assert stop_daemon(config) == process.pid
    assert process.wait(5) == 0
    assert (config.root / "capture.shop/drained").exists()
    assert (config.root / "apply/drained").exists()
    assert not (config.state_dir / "daemon.json").exists()
    assert not Path(daemon.token_file).exists()
    assert stop_daemon(config) is None
    lines = (config.state_dir / "logs/daemon.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "daemon_started"
    assert events[-1] == "daemon_stopped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_drain(config, start, number):
    process = start("capture:shop=WELL")
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    process.send_signal(number)
    assert process.wait(20) == 0
    assert (config.root / "capture.shop/drained").exists()


def test_kill_9_takes_the_children_along_and_the_next_start_works(config, start):
    process = start("capture:shop=WELL", "apply=WELL")
    process.stdout.readline()
    wait_until(lambda: starts(config.root, "capture:shop") and starts(config.root, "apply"))
    pids = [starts(config.root, name)[0][0] for name in ("capture:shop", "apply")]
    process.kill()
    process.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids), 5)
    assert not (config.root / "capture.shop/drained").exists()
    # Its files are there still, and mislead nobody.
    assert (config.state_dir / "daemon.json").exists()
    assert running_daemon(config) is None
    again = start("capture:shop=WELL", "apply=WELL")
    again.stdout.readline()
    daemon = running_daemon(config)
    assert daemon is not None
    assert daemon.pid == again.pid
    assert stop_daemon(config) == again.pid


def test_a_child_that_is_killed_comes_back(config, start):
    process = start("capture:shop=WELL")
    process.stdout.readline()
    wait_until(lambda: starts(config.root, "capture:shop"))
    os.kill(starts(config.root, "capture:shop")[0][0], signal.SIGKILL)
    wait_until(lambda: len(starts(config.root, "capture:shop")) == 2)
    daemon = running_daemon(config)
    assert daemon is not None
    wait_until(lambda: get(f"{daemon.http}/ready")[0] == 200)
    child = daemon_status(daemon)["children"][0]
    assert (child["restarts"], child["exit_code"]) == (1, -signal.SIGKILL)
    stop_daemon(config)


def test_only_one_daemon_runs(config, start):
    process = start("capture:shop=WELL")
    process.stdout.readline()
    second = start("capture:shop=WELL")
    assert second.wait(20) == 3
    assert "runs already" in second.stderr.read()
    daemon = running_daemon(config)
    assert daemon is not None
    assert daemon.pid == process.pid
    stop_daemon(config)


def test_a_refused_source_ends_the_daemon_with_its_remedy(config, start):
    process = start("capture:shop=REFUSES", "apply=WELL")
    assert process.wait(20) == 2
    text = process.stderr.read()
    assert "no primary key" in text
    assert "ALTER TABLE public.t ADD PRIMARY KEY (id);" in text


def test_stop_says_what_to_do_when_the_drain_takes_too_long(config, start, monkeypatch):
    process = start("capture:shop=STUBBORN")
    process.stdout.readline()
    monkeypatch.setattr("cdc.daemon.client._STOP_PATIENCE_S", 0.5)
    with pytest.raises(CdcError) as caught:
        stop_daemon(config)
    assert caught.value.code == "stop_timeout"
    assert f"kill -9 {process.pid}" in (caught.value.remedy or "")
    assert is_locked(config)
    process.kill()
    os.kill(int((config.root / "capture.shop/grandchild").read_text()), signal.SIGKILL)
    wait_until(lambda: not alive(starts(config.root, "capture:shop")[0][0]), 5)


def test_a_daemon_that_does_not_answer_is_an_environment_problem(config, start):
    process = start("capture:shop=WELL")
    process.stdout.readline()
    daemon = running_daemon(config)
    assert daemon is not None
    process.kill()
    process.wait()
    with pytest.raises(EnvironmentProblem) as caught:
        daemon_status(daemon)
    assert caught.value.code == "daemon_unreachable"


def test_looking_at_the_lock_does_not_hinder_a_start(config, start):
    config.state_dir.mkdir(mode=0o700)
    with (config.state_dir / "daemon.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        process = start("capture:shop=WELL")
        time.sleep(0.7)
    assert process.stdout.readline().startswith("started")
    stop_daemon(config)
