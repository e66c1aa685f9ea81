"""Workers of a load that die, hang, wake up too late, or are fenced."""

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from typing import Any

import psutil
import psycopg
import pytest

from cdc.errors import LogError
from cdc.load import ChunkDone, Written
from snapshots.copier import ChunkCopier, Tuning, fence
from snapshots.messages import CopyChunk, Failed, Ready, RowsWritten, SetRate, WorkerSetup
from snapshots.pool import Worker
from tests.support.copying import records_of, sessions, wait_until, worker_processes
from tests.support.export import copy_settings, copy_until, load_tasks

pytestmark = pytest.mark.timeout(120)

ROWS = 30_000
#: What is not about the pauses between a worker's lives need not wait for them.
QUICK = Tuning(first_back_off=0.05)


@pytest.fixture
def source(database):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute(
            "create table big (id bigint primary key, note text);"
            f"insert into big select i, repeat('x', 60) from generate_series(1, {ROWS}) i"
        )
        yield connection


def hear(said, worker):
    """All that a worker has said so far."""
    said.extend(worker.read())
    return said


def look_for_copies(database, found, _copied):
    found.extend(sessions(database, "COPY%"))
    return found


def all_there(stack, task):
    ids = {record.after["id"] for record in records_of(stack.bootstrap, task)}
    return ids == set(range(1, ROWS + 1))


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.full)])
def test_the_chunk_of_a_dead_worker_is_copied_again(stack, source, database, topic_prefix, how):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"], chunk_blocks=60)
    settings = copy_settings(stack.bootstrap, database, rows_per_second=6000)
    with closing(ChunkCopier(settings, Tuning(stall_seconds=12))) as copier:
        copier.begin(task)
        copied = copy_until(
            copier, lambda c: c.total(task) > 0 and len(sessions(database, "COPY%")) == 2
        )
        victims = worker_processes()
        assert len(victims) == 2
        for victim in victims:
            victim.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        copy_until(copier, copied=copied)
        assert not copied.failed
        assert set(copied.rows[task.key]) == set(range(task.plan.count))
        assert copied.total(task) == ROWS
        assert not {p.pid for p in victims} & {p.pid for p in worker_processes()}
        for victim in victims:
            with pytest.raises(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGCONT)
    # Rows of the dead ones were never committed; but a chunk that was, as its worker died before
    # it could tell, is there twice, whole and alike.
    found = list(records_of(stack.bootstrap, task))
    rows = {record.key: record.after for record in found}
    assert all(record.after == rows[record.key] for record in found)
    chunks = [0, *copied.rows[task.key].values()]
    assert len(found) - ROWS in {one + other for one in chunks for other in chunks}
    assert all_there(stack, task)


def test_a_worker_that_wakes_after_its_replacement_finished_writes_nothing(
    stack, source, database, topic_prefix
):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"])
    settings = copy_settings(stack.bootstrap, database, workers=1)
    names = ("project", "source", "conninfo", "epoch", "origin", "bootstrap_servers", "log_options")
    zombie = Worker(WorkerSetup(1, **{name: getattr(settings, name) for name in names}))
    try:
        for command in (SetRate(6000.0), task, CopyChunk(0)):
            zombie.tell(command)
        # The copier that started it is gone, without a trace of its being busy.
        wait_until(lambda: sessions(database, "COPY%"))
        assert zombie.read() == [Ready()]
        psutil.Process(zombie.pid).suspend()
        with closing(ChunkCopier(settings)) as copier:
            copier.begin(task)
            copied = copy_until(copier)
        assert copied.total(task) == ROWS
        psutil.Process(zombie.pid).resume()
        said: list[Any] = []
        wait_until(lambda: None in hear(said, zombie), 60)
    finally:
        zombie.kill()
    assert not [m for m in said if isinstance(m, RowsWritten)]
    assert isinstance(said[0], Failed) and said[0].error.code == "producer_fenced"
    assert len(list(records_of(stack.bootstrap, task))) == ROWS
    assert all_there(stack, task)


def test_a_worker_that_another_capture_fences_ends_the_copying(
    stack, source, database, topic_prefix
):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"])
    settings = copy_settings(stack.bootstrap, database, workers=1, rows_per_second=3000)
    with closing(ChunkCopier(settings)) as copier:
        copier.begin(task)
        copy_until(copier, lambda _: sessions(database, "COPY%"))
        fence(settings, 1)
        with pytest.raises(LogError) as fenced:
            copy_until(copier)
    assert fenced.value.code == "producer_fenced"
    assert worker_processes() == []


def test_a_chunk_at_which_workers_die_again_and_again_fails_its_load(
    stack, source, database, topic_prefix
):
    source.execute("create table good (id int primary key); insert into good values (1)")
    bad, good = load_tasks(source, stack.bootstrap, topic_prefix, ["big", "good"])
    # A chunk of ten seconds, so that none is done before its worker is killed.
    settings = copy_settings(stack.bootstrap, database, workers=1, rows_per_second=3000)
    killed: set[Any] = set()

    def kill(_copied):
        if sessions(database, "COPY%") and len(killed) < 5:
            for process in worker_processes():
                if process.pid not in killed:
                    killed.add(process.pid)
                    process.kill()
        return copier.busy is False

    with closing(ChunkCopier(settings, QUICK)) as copier:
        copier.begin(bad)
        copier.begin(good)
        copied = copy_until(copier, kill, seconds=100)
    assert len(killed) == 5
    assert copied.failed[bad.key].error.code == "snapshot_worker_died"
    assert "signal 9" in copied.failed[bad.key].error.message
    assert copied.failed[bad.key].error.table == "shop.public.big"
    assert copied.total(good) == 1


def test_a_session_that_is_ended_is_no_failure_of_the_load(stack, source, database, topic_prefix):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"])
    settings = copy_settings(stack.bootstrap, database, rows_per_second=10_000)
    with closing(ChunkCopier(settings, QUICK)) as copier:
        copier.begin(task)
        for _ in range(2):
            found: list[int] = []
            copied = copy_until(copier, partial(look_for_copies, database, found))
            for pid in found:
                source.execute("select pg_terminate_backend(%s)", (pid,))
            copy_until(copier, lambda _: not sessions(database, "COPY%"), copied=copied)
        copy_until(copier, copied=copied)
    assert not copied.failed
    assert copied.total(task) == ROWS
    assert all_there(stack, task)


def test_workers_die_with_their_parent(stack, source, database, topic_prefix, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import pickle, sys\n"
        "from snapshots.copier import ChunkCopier\n"
        "settings, task = pickle.load(sys.stdin.buffer)\n"
        "copier = ChunkCopier(settings)\n"
        "copier.begin(task)\n"
        "while copier.busy:\n"
        "    for event in copier.poll(0.1): print('event', flush=True)\n"
    )
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"], chunk_blocks=10)
    settings = copy_settings(stack.bootstrap, database, rows_per_second=2000)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdin.write(pickle.dumps((settings, task)))
        parent.stdin.close()
        # Logs go to the same place.
        while (line := parent.stdout.readline()) and line != b"event\n":
            pass
        assert line
        workers = worker_processes(parent.pid)
        assert len(workers) == 2
        parent.kill()
        parent.wait()
        assert not psutil.wait_procs(workers, timeout=10)[1]
    wait_until(lambda: not sessions(database))


def test_close_ends_workers_in_the_middle_of_a_chunk(stack, source, database, topic_prefix):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"])
    settings = copy_settings(stack.bootstrap, database, rows_per_second=2000)
    copier = ChunkCopier(settings)
    copier.begin(task)
    copied = copy_until(copier, lambda _: sessions(database, "COPY%"))
    began = time.monotonic()
    copier.close()
    assert time.monotonic() - began < 2
    assert worker_processes() == []
    assert not [e for e in copied.events if isinstance(e, ChunkDone | Written)]
    wait_until(lambda: not sessions(database))
