import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from deploy.local.process import ServerProcess, server_account, tail


@pytest.fixture
def sleeper(tmp_path):
    process = ServerProcess.spawn(
        ["/bin/sleep", "600"], log_path=tmp_path / "log", cwd=tmp_path, env={}, die_signal=9
    )
    _wait_for(lambda: psutil.Process(process.pid).name() == "sleep")
    yield process
    process.kill()


def _wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


def test_a_recorded_process_is_found_again(sleeper):
    found = ServerProcess.find(sleeper.pid, sleeper.started, "600")
    assert found is not None
    assert found.alive()


def test_a_process_is_found_while_its_program_is_loaded(tmp_path):
    # For a moment it has no arguments: those of the launcher are gone, its own not there yet.
    for _ in range(25):
        process = ServerProcess.spawn(
            ["/bin/sleep", "600"], log_path=tmp_path / "log", cwd=tmp_path, env={}, die_signal=9
        )
        loaded, found = False, []
        while not loaded:
            loaded = psutil.Process(process.pid).name() == "sleep"
            found.append(ServerProcess.find(process.pid, process.started, "600"))
        process.kill()
        assert None not in found


def test_a_reused_pid_is_not_taken_for_the_recorded_process(sleeper):
    assert ServerProcess.find(sleeper.pid, sleeper.started - 60, "600") is None
    assert ServerProcess.find(sleeper.pid, sleeper.started, "/another/data") is None


def test_an_ended_process_is_not_found(sleeper):
    sleeper.kill()
    assert not sleeper.alive()
    assert ServerProcess.find(sleeper.pid, sleeper.started, "600") is None
    assert not sleeper.signal(signal.SIGTERM)


def test_pause_and_stop_of_a_paused_process(sleeper):
    sleeper.pause()
    _wait_for(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED)
    assert sleeper.stop(signal.SIGTERM, 20)


def test_a_server_has_a_session_of_its_own(sleeper):
    assert os.getsid(sleeper.pid) == sleeper.pid


@pytest.mark.parametrize(("die_signal", "survives"), [(9, False), (None, True)])
def test_a_server_outlives_its_parent_only_if_asked_to(tmp_path, die_signal, survives):
    code = f"""
import os, sys
from pathlib import Path
from deploy.local.process import ServerProcess
p = ServerProcess.spawn(["/bin/sleep", "600"], log_path=Path({str(tmp_path)!r}) / "log",
                        cwd=Path("/"), env={{}}, die_signal={die_signal})
while Path(f"/proc/{{p.pid}}/comm").read_text().strip() != "sleep":
    pass
print(p.pid, p.started, flush=True)
os.kill(os.getpid(), 9)
"""
    root = Path(__file__).parents[3]
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert answer.returncode == -signal.SIGKILL, answer.stderr
    pid, started = answer.stdout.split()
    find = lambda: ServerProcess.find(int(pid), float(started), "600")  # noqa: E731
    if survives:
        process = find()
        assert process is not None
        process.kill()
    else:
        _wait_for(lambda: find() is None)


def test_a_server_that_is_started_in_a_thread_outlives_the_thread(tmp_path):
    import threading

    started = []

    def run():
        started.append(
            ServerProcess.spawn(
                ["/bin/sleep", "600"], log_path=tmp_path / "log", cwd=tmp_path, env={}, die_signal=9
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (process,) = started
    _wait_for(lambda: psutil.Process(process.pid).name() == "sleep")
    time.sleep(0.2)
    assert process.alive()
    process.kill()


def test_a_program_that_does_not_exist_ends_with_a_message(tmp_path):
    log = tmp_path / "log"
    process = ServerProcess.spawn(["/no/such/program"], log_path=log, cwd=tmp_path, env={})
    assert process.wait_gone(20)
    assert "/no/such/program" in tail(log, ["No such file"])


def test_servers_never_run_as_root(tmp_path):
    account = server_account()
    if os.geteuid() == 0:
        assert account is not None
        assert account.uid != 0
        process = ServerProcess.spawn(
            ["/usr/bin/id", "-u"],
            log_path=tmp_path / "log",
            cwd=Path("/"),
            env={},
            account=account,
        )
        assert process.wait_gone(20)
        assert (tmp_path / "log").read_text().strip() == str(account.uid)
    else:
        assert account is None


def test_tail_takes_the_last_matching_lines(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"ERROR {n}\nINFO {n}\n" for n in range(10)))
    assert tail(log, ["ERROR"], lines=2) == "ERROR 8 | ERROR 9"
    assert tail(tmp_path / "none", ["ERROR"]) == ""
