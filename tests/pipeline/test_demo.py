"""``cdc demo`` as a person runs it: what it answers, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cdc.daemon.client import with_package_path
from deploy.demo.data import SMALL_TABLES, TABLES, read
from deploy.local.package import shared_root

ROWS = 3_000


@pytest.fixture
def environment(tmp_path):
    """One in which the demo's temporary folder is ours."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return with_package_path({**os.environ, "TMPDIR": str(temporary)})


def cdc(*arguments):
    return [sys.executable, "-m", "cdc.cli.main", *arguments]


def assert_nothing_left(folder: Path) -> None:
    """No process that knows the folder, no file of the demo in it, no server's data for it."""
    deadline = time.monotonic() + 10
    while found := processes_of(folder):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    assert [path for path in folder.rglob("*") if path.name.startswith(("cdc", ".cdc"))] == []
    owners = [path.read_text() for path in shared_root().glob("*/owner.json")]
    assert not [owner for owner in owners if str(folder) in owner]


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = " ".join([*(process.info["cmdline"] or []), process.info["cwd"] or ""])
        if str(folder) in words:
            found.append(words)
    return found


def test_every_table_equals_postgres_and_nothing_is_left(environment, tmp_path):
    ended = subprocess.run(
        cdc("demo", "--rows", str(ROWS), "--seconds", "6", "--json"),
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["ok"] and answer["command"] == "demo" and answer["error"] is None
    figures = answer["result"]
    small = {table.name: sum(1 for _ in read(table)) for table in SMALL_TABLES}
    past = figures["past"]["rows"]
    assert past == {**small, "flights": 2_500}
    live = figures["live"]
    assert live["changes"] == sum(live["kinds"].values()) > 0
    assert live["transactions"] > 10
    assert live["queries"] >= 2
    flights = 2_500 + live["kinds"]["scheduled"] - live["kinds"]["cancelled"]
    assert [check["when"] for check in figures["checks"]] == [
        "after the first load",
        "after the live changes",
        "after the rebuild",
    ]
    assert all(check["equal"] for check in figures["checks"])
    assert figures["checks"][0]["rows"] == past
    assert (
        figures["checks"][1]["rows"]
        == figures["checks"][2]["rows"]
        == {
            **small,
            "flights": flights,
        }
    )
    assert figures["rebuild"]["table"] == "nyc.public.flights"
    assert figures["folder"] is None
    assert_nothing_left(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(environment, tmp_path, sent):
    process = subprocess.Popen(
        cdc("demo", "--rows", "1000", "--keep", "--dir", str(tmp_path / "demo")),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that runs the tests in the background lets them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line.startswith("3 "):
                break
        assert seen[-1].startswith("3 "), "".join(seen)
        # While the daemon is starting its processes.
        time.sleep(2)
        process.send_signal(sent)
        rest = process.stdout.read()
        assert process.wait(120) == 130, rest
        assert "Traceback" not in rest
        assert "interrupted: everything is removed" in rest
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert_nothing_left(tmp_path)
    assert not (tmp_path / "demo").exists()


def test_a_folder_in_use_is_refused(environment, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    ended = subprocess.run(
        cdc("demo", "--dir", str(tmp_path), "--json"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert json.loads(ended.stdout)["error"]["code"] == "demo_folder"
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.full
def test_a_kept_demo_goes_on(environment, tmp_path):
    folder = tmp_path / "demo"
    run = {"env": environment, "capture_output": True, "text": True, "check": True}
    shown = subprocess.run(
        cdc("demo", "--rows", "1000", "--seconds", "3", "--keep", "--dir", str(folder)),
        timeout=400,
        **run,
    ).stdout
    try:
        assert "cdc.yaml" in shown and str(folder) in shown
        for table in TABLES:
            answered = subprocess.run(
                cdc("query", f"select count(*) from nyc.public.{table.name}", "--json"),
                cwd=folder,
                **run,
            ).stdout
            assert json.loads(answered)["result"]["rows"][0][0] > 0
    finally:
        subprocess.run(cdc("destroy", "--yes"), cwd=folder, **run)
    assert [path for path in folder.rglob("*") if path.suffix == ".parquet"] == []
    assert not (folder / ".cdc").exists()
    assert processes_of(folder) == []
