"""The exported-snapshot load on a real server and broker."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import psutil
import psycopg
import pytest

from cdc.errors import EnvironmentProblem, SourceError, SourceRefused
from cdc.load import LoadProgress
from cdc.log.admin import LogAdmin
from cdc.log.partition import partition_of
from cdc.log.reader import LogReader
from cdc.names import TableId
from cdc.position import snapshot_position
from snapshots.load import run_exported_load
from tests.support.export import EPOCH, exported, load_request

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


@pytest.fixture
def source(database):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def ignore(_progress):
    pass


def records_of(bootstrap, task):
    reader = LogReader(bootstrap)
    ends = LogAdmin(bootstrap).offsets(task.topic)
    with reader:
        for partition, offsets in ends.items():
            yield from reader.records(task.topic, partition, 0, offsets.last_stable)


def worker_processes(parent=None):
    found: list[psutil.Process] = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if "snapshots.worker" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def sessions(conninfo, query="%"):
    with psycopg.connect(**conninfo) as connection:
        return connection.execute(
            "select pid from pg_stat_activity where application_name ~ '^cdc .*snapshot'"
            " and datname = current_database() and query like %s",
            (query,),
        ).fetchall()


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def write_until(conninfo, stop):
    """Changes, adds and removes rows of big and of the small table all the time."""
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        n = 100_000
        while not stop.is_set():
            n += 10
            connection.execute(
                "insert into big select i, 0, 'new' from generate_series(%s, %s) i", (n, n + 9)
            )
            connection.execute(
                "update big set note = 'changed', n = n + 1 where id %% 50 = %s", (n // 10 % 50,)
            )
            connection.execute("delete from big where id = %s", (n % 30_000,))
            connection.execute('update "Odd ""näme" set note = %s', (str(n),))


@pytest.mark.parametrize("partitions", [1, 3])
def test_workers_copy_exactly_the_snapshot_while_writers_go_on(
    stack, source, database, topic_prefix, partitions
):
    stop = threading.Event()
    writer = threading.Thread(target=write_until, args=(database, stop))
    writer.start()
    try:
        time.sleep(0.2)
        with exported(database) as export:
            request = load_request(
                export, stack.bootstrap, topic_prefix, [SMALL, EMPTY, BIG], partitions=partitions
            )
            with export.session() as session:
                big = {
                    row[0]: row
                    for row in session.execute(
                        'select id, n, note, to_char(at, \'YYYY-MM-DD"T"HH24:MI:SS.US"Z"\')'
                        " from public.big"
                    )
                }
                small = {
                    (row[1], row[0]): row[2]
                    for row in session.execute('select * from public."Odd ""näme"')
                }
            told: list[LoadProgress] = []
            # Each range is some hundred rows: the workers meet in one table again and again.
            result = run_exported_load(request, told.append, range_bytes=64 * 1024)
    finally:
        stop.set()
        writer.join()
    with psycopg.connect(**database) as connection:
        now = {row[0]: row[2] for row in connection.execute("select * from big")}
    assert any(now.get(id) != row[2] for id, row in big.items()), "the writers changed nothing"

    small_task, empty_task, big_task = request.tasks
    assert result.rows == {
        TableId("public", BIG): len(big),
        TableId("public", SMALL): len(small),
        TableId("public", EMPTY): 0,
    }
    position = snapshot_position(EPOCH, export.consistent_point)
    seen = {}
    ends: dict[int, int] = {}
    for record in records_of(stack.bootstrap, big_task):
        assert (record.op, record.before, record.position) == ("r", None, position)
        assert record.partition == partition_of(record.key, partitions)
        ends[record.partition] = record.offset + 1
        after = record.after
        assert after["id"] not in seen
        seen[after["id"]] = (after["id"], after["n"], after["note"], after["at"])
    assert seen == big
    seen = {}
    for record in records_of(stack.bootstrap, small_task):
        assert record.position == position
        seen[record.after["k\\y"], record.after["a%b"]] = record.after["note"]
    assert seen == small
    assert list(records_of(stack.bootstrap, empty_task)) == []

    assert result.ends[big_task.topic] == ends
    assert empty_task.topic not in result.ends

    final = {p.table: p for p in told if p.done}
    assert {id: p.rows for id, p in final.items()} == result.rows
    assert all(p.rows <= result.rows[p.table] for p in told)
    wait_until(lambda: not sessions(database))
    assert worker_processes() == []


def test_a_load_takes_no_more_workers_than_ranges_and_needs_no_tables(
    stack, source, database, topic_prefix
):
    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [EMPTY], workers=16)
        most = []
        result = run_exported_load(request, lambda _: most.append(len(worker_processes())))
        assert (result.rows, result.ends) == ({TableId("public", EMPTY): 0}, {})
        assert max(most) <= 1
        request = load_request(export, stack.bootstrap, topic_prefix, [])
        assert run_exported_load(request, ignore).rows == {}


@pytest.mark.parametrize("moment", ["starting", "copying"])
def test_a_killed_worker_fails_the_load_and_leaves_nothing_running(
    stack, source, database, topic_prefix, moment
):
    killed: list[int] = []

    def kill(progress):
        if not killed and (moment == "starting" or len(sessions(database, "COPY%")) == 2):
            assert not progress.done
            victim = worker_processes()[0]
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)

    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [BIG])
        with pytest.raises(EnvironmentProblem) as failed:
            run_exported_load(request, kill, range_bytes=32 * 1024)
        assert killed
        assert failed.value.code == "snapshot_worker_died"
        assert "signal 9" in failed.value.message
        assert failed.value.table == ("shop.public.big" if moment == "copying" else None)
        assert worker_processes() == []
        wait_until(lambda: not sessions(database))
        # The same ids serve the next load: what was left open is fenced.
        again = run_exported_load(request, ignore)
        assert again.rows == {TableId("public", BIG): 30_000}


def test_progress_that_raises_ends_the_load(stack, source, database, topic_prefix):
    class Stop(Exception):
        pass

    def stop(_progress):
        raise Stop

    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [BIG])
        with pytest.raises(Stop):
            run_exported_load(request, stop)
        assert worker_processes() == []
        wait_until(lambda: not sessions(database))


def test_workers_die_with_their_parent(stack, source, database, topic_prefix, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import pickle, sys\n"
        "from snapshots.load import run_exported_load\n"
        "request = pickle.load(sys.stdin.buffer)\n"
        "run_exported_load(request, lambda p: print(p.rows, flush=True), range_bytes=8192)\n"
    )
    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [BIG])
        with subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        ) as parent:
            assert parent.stdin is not None and parent.stdout is not None
            parent.stdin.write(pickle.dumps(request))
            parent.stdin.close()
            # Logs go to the same place.
            while (line := parent.stdout.readline()) and not (line[:-1].isdigit() and int(line)):
                pass
            assert line
            workers = worker_processes(parent.pid)
            assert len(workers) == 2
            parent.kill()
            parent.wait()
            assert not psutil.wait_procs(workers, timeout=10)[1]
        wait_until(lambda: not sessions(database))


CHANGES = {
    "truncate": ("truncate big", "table_rewritten"),
    "vacuum full": ("vacuum full big", "table_rewritten"),
    "drop": ("drop table big", "table_rewritten"),
    "rename": ("alter table big rename to other", "table_rewritten"),
    "replace": (
        "alter table big rename to old; create table big (like old including all);"
        " insert into big select * from old",
        "table_rewritten",
    ),
    "swap names": (
        "alter table big rename note to x; alter table big add note text",
        "table_changed",
    ),
    "drop column": ("alter table big drop note", "table_changed"),
    "retype": ("alter table big alter note type varchar", "table_changed"),
    "rewrite": ("alter table big alter n type bigint", "table_rewritten"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_changed_after_the_snapshot_is_refused_by_name(
    stack, source, database, topic_prefix, change
):
    statements, code = CHANGES[change]
    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [SMALL, BIG])
        for statement in statements.split(";"):
            source.execute(statement)
        with pytest.raises(SourceError) as refused:
            run_exported_load(request, ignore)
        assert refused.value.code == code
        assert refused.value.table == "shop.public.big"
        assert list(records_of(stack.bootstrap, request.tasks[1])) == []


def test_what_does_not_touch_the_rows_is_no_obstacle(stack, source, database, topic_prefix):
    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [BIG])
        source.execute("alter table big add more text; create index on big (n)")
        source.execute("vacuum big")
        result = run_exported_load(request, ignore)
    assert result.rows == {TableId("public", BIG): 30_000}
    record = next(iter(records_of(stack.bootstrap, request.tasks[0])))
    assert list(record.after) == ["id", "n", "note", "at"]


def test_rows_of_child_tables_are_not_copied(stack, source, database, topic_prefix):
    source.execute("create table child () inherits (empty); insert into child values (1)")
    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [EMPTY])
        assert run_exported_load(request, ignore).rows == {TableId("public", EMPTY): 0}


def test_hidden_rows_refuse_the_load(stack, source, database, topic_prefix):
    role = f"r_{database['dbname']}"
    source.execute(f"create role {role} login password 'made-up'; grant select on big to {role}")
    try:
        source.execute(
            "alter table big enable row level security; create policy p on big using (n > 5)"
        )
        with exported(database) as export:
            request = load_request(
                export,
                stack.bootstrap,
                topic_prefix,
                [BIG],
                conninfo={**database, "user": role, "password": "made-up"},
            )
            with pytest.raises(SourceRefused) as refused:
                run_exported_load(request, ignore)
            assert (refused.value.code, refused.value.table) == ("row_security", "shop.public.big")
            source.execute("alter table big disable row level security")
            assert run_exported_load(request, ignore).rows[TableId("public", BIG)] == 30_000
            source.execute(f"revoke select on big from {role}")
            with pytest.raises(SourceRefused) as refused:
                run_exported_load(request, ignore)
            assert refused.value.code == "no_permission"
    finally:
        source.execute(f"drop owned by {role}; drop role {role}")


def test_a_row_over_the_limit_names_its_table(stack, source, database, topic_prefix):
    source.execute(
        "insert into big select 99999, 1, string_agg(md5(i::text), '')"
        " from generate_series(1, 2000) i"
    )
    with exported(database) as export:
        request = load_request(
            export, stack.bootstrap, topic_prefix, [BIG, SMALL], max_message_bytes=20_000
        )
        with pytest.raises(SourceRefused) as refused:
            run_exported_load(request, ignore)
    assert (refused.value.code, refused.value.table) == ("record_too_large", "shop.public.big")
    assert worker_processes() == []


def test_text_that_is_not_utf8_is_refused_without_showing_it(stack, topic_prefix):
    name = f"ascii_{topic_prefix[:-1]}"
    conninfo = stack.postgres.create_database(
        name, "encoding 'SQL_ASCII' template template0 lc_collate 'C' lc_ctype 'C'"
    )
    try:
        with psycopg.connect(**conninfo, autocommit=True) as connection:
            connection.execute("set client_encoding = 'SQL_ASCII'")
            connection.execute("create table big (id int primary key, note text)")
            connection.execute(rb"insert into big values (1, E'secret\xe9')")
        with exported(conninfo) as export:
            request = load_request(export, stack.bootstrap, topic_prefix, [BIG])
            with pytest.raises(SourceRefused) as refused:
                run_exported_load(request, ignore)
        assert (refused.value.code, refused.value.table) == ("bad_value", "shop.public.big")
        assert "secret" not in str(refused.value) and "0xe9" not in str(refused.value)
    finally:
        stack.postgres.drop_database(name)


def test_a_snapshot_whose_exporter_is_gone(stack, source, database, topic_prefix):
    with exported(database) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, [BIG])
    with pytest.raises(SourceError) as refused:
        run_exported_load(request, ignore)
    assert refused.value.code == "snapshot_gone"
