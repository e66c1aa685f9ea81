"""Chunks of tables into their topics, on a real server and broker."""

import dataclasses
import subprocess
import threading
import time
from contextlib import closing
from itertools import pairwise

import psycopg
import pytest

from cdc.errors import SourceRefused
from cdc.load import ChunkDone, ChunkPlan, Written
from cdc.log.partition import partition_of
from cdc.names import TableId
from cdc.position import snapshot_position
from connectors.postgres.catalog import read_tables
from snapshots.copier import ChunkCopier, Tuning
from snapshots.writer import MAX_ROWS
from tests.support.copying import records_of, sessions, wait_until, worker_processes
from tests.support.export import EPOCH, Copied, copy_settings, copy_until, load_tasks

pytestmark = pytest.mark.timeout(120)

BIG, SMALL, EMPTY = "big", 'Odd "näme', "empty"
TABLES = """
create table big (id bigint primary key, n int not null, note text, at timestamptz);
insert into big select i, i % 97, repeat('x', i % 50), timestamptz '2024-01-01' + i * interval '1 s'
    from generate_series(1, 30000) i;
create table "Odd ""näme" ("a%b" int, "k\\y" text, note text, primary key ("k\\y", "a%b"));
insert into "Odd ""näme" select i, 'k' || i, null from generate_series(1, 500) i;
create table empty (id int primary key);
"""
AT = 'to_char(at, \'YYYY-MM-DD"T"HH24:MI:SS.US"Z"\')'


@pytest.fixture
def source(database):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


@pytest.mark.parametrize("partitions", [1, 3])
def test_all_rows_once_at_the_position_of_the_load(
    stack, source, database, topic_prefix, partitions
):
    big = dict.fromkeys(source.execute(f"select id, n, note, {AT} from big"))
    small = {(k, a) for a, k in source.execute('select "a%b", "k\\y" from "Odd ""näme"')}
    tasks = load_tasks(
        source,
        stack.bootstrap,
        topic_prefix,
        [SMALL, EMPTY, BIG],
        chunk_blocks=8,
        partitions=partitions,
    )
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        for task in tasks:
            copier.begin(task)
        assert copier.busy
        copied = copy_until(copier)
    small_task, empty_task, big_task = tasks
    assert big_task.plan.count > 10
    assert [copied.total(task) for task in tasks] == [500, 0, 30_000]
    for task in tasks:
        assert set(copied.rows[task.key]) == set(range(task.plan.count))

    position = snapshot_position(EPOCH, big_task.spool_from)
    ends: dict[int, int] = {}
    for record in records_of(stack.bootstrap, big_task):
        assert (record.op, record.before, record.position) == ("r", None, position)
        assert record.partition == partition_of(record.key, partitions)
        ends[record.partition] = record.offset + 1
        after = record.after
        # Raises if it comes twice.
        del big[after["id"], after["n"], after["note"], after["at"]]
    assert big == {}
    seen = [(r.after["k\\y"], r.after["a%b"]) for r in records_of(stack.bootstrap, small_task)]
    assert sorted(seen) == sorted(small)
    assert list(records_of(stack.bootstrap, empty_task)) == []
    assert copied.ends[big_task.topic] == ends
    assert empty_task.topic not in copied.ends
    wait_until(lambda: not sessions(database))
    assert worker_processes() == []


def write_until(conninfo, stop):
    """Changes, adds and removes rows with odd ids all the time; moves them to other blocks."""
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        n = 100_001
        while not stop.is_set():
            n += 10
            connection.execute("insert into big values (%s, 0, 'new')", (n,))
            connection.execute(
                "update big set note = repeat('y', 200), n = n + 1 where id %% 50 = %s",
                (n // 10 % 25 * 2 + 1,),
            )
            connection.execute("delete from big where id = %s", (n % 30_000,))


def test_rows_that_nobody_touches_come_once_while_writers_move_others(
    stack, source, database, topic_prefix
):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, [BIG], chunk_blocks=4)
    stop = threading.Event()
    writer = threading.Thread(target=write_until, args=(database, stop))
    writer.start()
    try:
        with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
            copier.begin(task)
            copied = copy_until(copier)
    finally:
        stop.set()
        writer.join()
    assert len(copied.rows[task.key]) == task.plan.count
    changed = source.execute("select count(*) from big where note = repeat('y', 200)").fetchone()[0]
    assert changed > 1000, "the writers changed nothing"
    still = [r.after["id"] for r in records_of(stack.bootstrap, task) if r.after["id"] % 2 == 0]
    assert sorted(still) == list(range(2, 30_001, 2))


def test_only_what_is_left_is_copied_and_no_transaction_stays_open(
    stack, source, database, topic_prefix
):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, [BIG], chunk_blocks=50)
    last = task.plan.count - 1
    (piece,) = task.plan.pieces
    first, end = piece.blocks(1)
    expected = source.execute(
        "select id from big where ctid >= %s::tid and ctid < %s::tid or ctid >= %s::tid",
        (f"({first},0)", f"({end},0)", f"({piece.blocks(last)[0]},0)"),
    ).fetchall()
    part = dataclasses.replace(task, left=(last, 1))
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database, workers=1))) as copier:
        copier.begin(part)
        copied = copy_until(copier)
        assert [e.chunk for e in copied.events if isinstance(e, ChunkDone)] == [last, 1]
        open_since = source.execute(
            "select count(*), count(xact_start) from pg_stat_activity"
            " where application_name ~ '^cdc .*snapshot' and datname = current_database()"
        ).fetchone()
        assert open_since == (1, 0)
    ids = sorted(r.after["id"] for r in records_of(stack.bootstrap, task))
    assert ids == sorted(id for (id,) in expected)


def test_a_table_of_one_chunk_takes_one_worker_and_an_idle_one_ends(
    stack, source, database, topic_prefix
):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, [EMPTY])
    settings = copy_settings(stack.bootstrap, database, workers=16)
    with closing(ChunkCopier(settings, Tuning(idle_seconds=0.5))) as copier:
        assert copier.poll(0) == [] and not copier.busy
        assert worker_processes() == []
        copier.begin(task)
        most = 0
        copied = Copied()
        while copier.busy:
            for event in copier.poll(0.02):
                copied.take(event)
            most = max(most, len(worker_processes()))
        assert (copied.rows, copied.ends) == ({task.key: {0: 0}}, {})
        assert most == 1
        time.sleep(0.6)
        copier.poll(0)
        assert worker_processes() == []


def test_many_small_tables_take_no_process_each(stack, source, database, topic_prefix):
    names = [f"t{i}" for i in range(300)]
    source.execute(
        ";".join(
            f"create table {name} (id int primary key);"
            f" insert into {name} select generate_series(1, {i % 7})"
            for i, name in enumerate(names)
        )
    )
    tasks = load_tasks(source, stack.bootstrap, topic_prefix, names)
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        began = time.monotonic()
        for task in tasks:
            copier.begin(task)
        copied = Copied()
        pids = set()
        while copier.busy:
            # As rarely as capture's loop under load.
            time.sleep(0.5)
            for event in copier.poll(0):
                copied.take(event)
            pids |= {process.pid for process in worker_processes()}
        took = time.monotonic() - began
    assert [copied.total(task) for task in tasks] == [i % 7 for i in range(300)]
    assert len(pids) == 2
    assert took < 30


def test_rows_per_second_hold_for_all_workers_together(stack, source, database, topic_prefix):
    tasks = load_tasks(source, stack.bootstrap, topic_prefix, [BIG], chunk_blocks=20)
    settings = copy_settings(stack.bootstrap, database, rows_per_second=6000)
    with closing(ChunkCopier(settings)) as copier:
        copier.begin(tasks[0])
        copied = copy_until(copier, lambda c: c.total(tasks[0]) > 0)
        before, began = copied.total(tasks[0]), time.monotonic()
        copy_until(copier, copied=copied)
        took = time.monotonic() - began
    rows = copied.total(tasks[0]) - before
    assert copied.total(tasks[0]) == 30_000
    # The other worker may be in the middle of a chunk at first, and at the end one is alone.
    assert 0.6 * 6000 < rows / took < 1.3 * 6000


def test_large_chunks_are_committed_in_parts(stack, source, database, topic_prefix):
    source.execute("insert into big select i, 0 from generate_series(30001, 250000) i")
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, [BIG])
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        copier.begin(task)
        copied = copy_until(copier)
    written = [event.rows for event in copied.events if isinstance(event, Written)]
    # At so many rows, or earlier: a part does not stay open for long on a slow machine.
    parts = [after - before for before, after in pairwise([0, *written, 250_000])]
    assert len(parts) > 1
    assert all(0 < rows <= MAX_ROWS for rows in parts)
    assert copied.total(task) == 250_000


def test_a_later_load_is_copied_when_the_first_has_no_chunk_left_to_give(
    stack, source, database, topic_prefix
):
    tasks = load_tasks(source, stack.bootstrap, topic_prefix, [BIG, SMALL])
    settings = copy_settings(stack.bootstrap, database, rows_per_second=6000)
    with closing(ChunkCopier(settings)) as copier:
        for task in tasks:
            copier.begin(task)
        copied = copy_until(copier)
    done = [event.load for event in copied.events if isinstance(event, ChunkDone)]
    assert done == [tasks[1].key, tasks[0].key]


def test_cancel_leaves_nothing_that_writes(stack, source, database, topic_prefix):
    tasks = load_tasks(source, stack.bootstrap, topic_prefix, [BIG, SMALL], chunk_blocks=20)
    settings = copy_settings(stack.bootstrap, database, rows_per_second=5000)
    with closing(ChunkCopier(settings)) as copier:
        copier.begin(tasks[0])
        copied = copy_until(copier, lambda c: c.total(tasks[0]) > 0)
        copier.begin(tasks[1])
        copier.cancel(tasks[0].key)
        copier.cancel(tasks[0].key)
        rows = len(list(records_of(stack.bootstrap, tasks[0])))
        copy_until(copier, copied=copied)
        assert copied.total(tasks[1]) == 500
        assert not copied.failed
        assert len(list(records_of(stack.bootstrap, tasks[0]))) == rows < 30_000
        # The same load may go on later.
        done = copied.rows[tasks[0].key]
        left = tuple(c for c in tasks[0].left if c not in done)
        copier.begin(dataclasses.replace(tasks[0], left=left))
        copy_until(copier, copied=copied)
    assert copied.total(tasks[0]) == 30_000
    ids = {r.after["id"] for r in records_of(stack.bootstrap, tasks[0])}
    assert ids == set(range(1, 30_001))


def test_measure_asks_the_catalog_alone(stack, source, database):
    source.execute("analyze big")
    ids = source.execute("select pg_relation_size('big'), pg_table_size('big')").fetchone()
    definitions = read_tables(source, [TableId("public", BIG), TableId("public", EMPTY)])
    schemas = [d.schema(1, snapshot_position(EPOCH, 1)) for d in definitions.values()]
    copier = ChunkCopier(copy_settings(stack.bootstrap, database), Tuning(chunk_bytes=81920))
    with closing(copier), psycopg.connect(**database) as locker:
        found = dict(zip([s.table for s in schemas], copier.measure(schemas), strict=True))
        assert (found[BIG].rows, found[BIG].total_bytes) == (30_000, ids[1])
        plan = found[BIG].plan
        assert plan.pieces[0].step <= 10
        assert plan.count == -(-ids[0] // 8192 // plan.pieces[0].step)
        assert (found[EMPTY].plan, found[EMPTY].rows) == (ChunkPlan.whole(1, 1), 0)
        slow = copy_settings(stack.bootstrap, database, rows_per_second=100)
        with closing(ChunkCopier(slow)) as limited:
            # Half a minute of one of two workers.
            assert limited.measure(schemas[:1])[0].plan.count == pytest.approx(20, abs=2)
        locker.execute("lock table big in access exclusive mode")
        # What the last VACUUM or ANALYZE saw.
        locked = dict(zip([s.table for s in schemas], copier.measure(schemas), strict=True))[BIG]
        assert 0.8 < locked.plan.count / plan.count <= 1
        locker.rollback()
        source.execute("drop table empty")
        with pytest.raises(SourceRefused) as refused:
            copier.measure(schemas)
    assert (refused.value.code, refused.value.table) == ("table_missing", "shop.public.empty")


def test_no_secret_is_in_the_arguments(stack, source, database, topic_prefix):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, [BIG])
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        copier.begin(task)
        copier.poll(0)
        (worker,) = worker_processes()
        shown = subprocess.run(
            ["ps", "-o", "args=", "-p", str(worker.pid)], capture_output=True, text=True, check=True
        ).stdout
    assert "snapshots.worker" in shown
    assert str(database["password"]) not in shown
