"""Partitioned tables are loaded leaf by leaf: in chunks, each of which is read once."""

import dataclasses
from collections import Counter
from contextlib import closing

import psycopg
import pytest

from cdc.states import ABANDONED, DONE, ERRORED
from connectors.postgres.chunk_marks import plan_of
from snapshots.copier import ChunkCopier, Tuning
from snapshots.source import lock_holders, open_session
from tests.loads.test_loads import loads_of, wait_copied
from tests.support.capturing import Capturing, assert_log_is_source
from tests.support.copying import records_of
from tests.support.export import copy_settings, copy_until, load_tasks
from tests.support.gated import Gate

pytestmark = pytest.mark.timeout(120)

ROWS = 120
#: By range, one leaf with its columns in another order, one part cut again by hash, in another
#: schema and with a name that needs quotes; the last leaf is empty.
CREATE = (
    "create table {t} (id int, m int, v text, n int, primary key (id, m)) partition by range (m)",
    "create table {t}_1 partition of {t} for values from (1) to (2)",
    "create table {t}_2 (gone text, v text, n int, m int not null, id int not null)",
    "alter table {t}_2 drop gone",
    "alter table {t} attach partition {t}_2 for values from (2) to (3)",
    "create table {t}_3 partition of {t} for values from (3) to (4) partition by hash (id)",
    "create schema if not exists apart",
    'create table apart."{t} ""A""" partition of {t}_3 for values with (modulus 2, remainder 0)',
    "create table {t}_3b partition of {t}_3 for values with (modulus 2, remainder 1)",
    "create table {t}_4 partition of {t} for values from (4) to (5)",
    "insert into {t} select i, 1 + i % 3, repeat('p', 500) || i, i"
    f" from generate_series(1, {ROWS}) i",
)
LEAVES = 5


@pytest.fixture
def loading(stack, database, topic_prefix):
    """Makes a source of partitioned tables, and the gate of its chunks, each of one block."""

    def make(*tables):
        gate = Gate()
        source = Capturing(stack.bootstrap, database, topic_prefix, tables, make_copier=gate)
        for table in tables:
            source.execute(*(statement.format(t=table) for statement in CREATE))
        return source, gate

    return make


def test_chunks_of_leaves_are_read_once_whatever_is_written_meanwhile(loading):
    source, gate = loading("logs")
    # Has no leaf at all.
    source.execute("create table bare (id int primary key) partition by range (id)")
    bare = dataclasses.replace(
        source.settings,
        tables=(*source.settings.tables, source.settings.tables[0]._replace(table="bare")),
    )
    source.settings = bare
    move = (
        "update logs set m = 1 + m % 3 where id % 5 = 0",
        "update logs set id = id + 1000, n = -1 where id % 7 = 0",
        "update logs set m = 4 where id between 60 and 64",
        "delete from logs where id % 11 = 0",
        "insert into logs values (2000, 1, 'new', 0), (2001, 4, 'new', 0)",
    )
    with source.running():
        wait_copied(source, ["logs"], 0)
        gate.open_to(3)
        wait_copied(source, ["logs"], 3)
        source.transaction(*move)
        (load,) = loads_of(source.control(), "logs").values()
        assert load.chunks > LEAVES + 3
        assert all(piece.count == 1 or piece.step == 1 for piece in plan_of(load).pieces)
        relids = {relid for piece in plan_of(load).pieces for relid in piece.leaves}
        assert len(relids) == LEAVES
    gate.open_to(6)
    # The next capture goes on at the chunks that are left.
    with source.running():
        wait_copied(source, ["logs"], 6)
        source.execute(*move[:2])
        gate.open_to(10_000)
        source.wait_ready(60)
        source.caught_up()
        assert_log_is_source(source, ["logs", "bare"])
        source.execute("update logs set m = 1 + m % 3 where id % 2 = 0")
        source.caught_up()
        assert_log_is_source(source, ["logs", "bare"])
        (done,) = loads_of(source.control(), "logs").values()
    assert (done.state, done.pieces) == (DONE, load.pieces)
    copied = [chunk for table, _, chunk in gate.copied if table == "logs"]
    assert sorted(copied) == list(range(load.chunks))
    assert source.record("bare").load == 1


#: Between two chunks.
CHANGES = {
    "detached": "alter table {t} detach partition {t}_1",
    "attached": "create table {t}_9 (id int not null, m int not null, v text, n int);"
    " insert into {t}_9 values (900, 9, 'came with it', 0);"
    " alter table {t} attach partition {t}_9 for values from (9) to (10)",
    "created": "create table {t}_9 partition of {t} for values from (9) to (10)",
    "rewritten": "vacuum full {t}_3b",
    "emptied": "truncate {t}_2",
    "dropped": "drop table {t}_2",
}


def test_leaves_that_change_while_they_are_copied_begin_another_load(loading):
    source, gate = loading(*CHANGES)
    with source.running():
        wait_copied(source, CHANGES, 0)
        gate.open_to(4)
        wait_copied(source, CHANGES, 4)
        for table, statements in CHANGES.items():
            source.execute(*statements.format(t=table).split(";"))
        gate.open_to(10_000)
        source.wait_ready(60)
        source.caught_up()
        assert_log_is_source(source, CHANGES)
        control = source.control()
    for table in CHANGES:
        states = [record.state for record in loads_of(control, table).values()]
        assert states == [ABANDONED, DONE], table


def test_a_partition_that_is_unlogged_sets_the_table_aside(loading, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    monkeypatch.setattr("connectors.postgres.reloads._RETRY_S", 0.5)
    source, gate = loading("logs")
    gate.open_to(10_000)
    with source.running():
        source.wait_ready(60)
        source.execute(
            "create unlogged table logs_9 partition of logs for values from (9) to (10)",
            "insert into logs values (900, 9, 'not in the WAL', 0)",
        )
        source.wait_until(lambda: source.record("logs").state == ERRORED, 30, "it to be aside")
        assert "ALTER TABLE public.logs_9 SET LOGGED;" in str(source.record("logs").remedy)
        source.execute("alter table logs_9 set logged")
        source.wait_loaded("logs", 2)
        source.caught_up()
        assert_log_is_source(source, ["logs"])


@pytest.fixture
def logs(database):
    with psycopg.connect(**database, autocommit=True) as connection:
        for statement in CREATE:
            connection.execute(statement.format(t="logs"))
        yield connection


def test_leaves_are_read_through_the_root_where_we_may_not_read_them(
    stack, logs, database, topic_prefix
):
    role = f"r_{database['dbname']}"
    logs.execute(f"create role {role} login password 'made-up'; grant select on logs to {role}")
    reader = {**database, "user": role, "password": "made-up"}
    (task,) = load_tasks(logs, stack.bootstrap, topic_prefix, ["logs"])
    schema = task.schema
    tuning = Tuning(chunk_bytes=8192)
    try:
        with (
            closing(ChunkCopier(copy_settings(stack.bootstrap, reader), tuning)) as copier,
            closing(ChunkCopier(copy_settings(stack.bootstrap, database), tuning)) as theirs,
        ):

            def in_pieces(by=copier):
                return by.measure([schema])[0].plan.count > 1

            assert in_pieces(theirs) and not in_pieces()
            (whole,) = copier.measure([schema])[0].plan.pieces
            assert (whole.count, whole.leaves) == (1, ())
            copier.begin(task)
            assert copy_until(copier).total(task) == ROWS
            # Planned before the permission was taken away: the next load is planned otherwise.
            plan = theirs.measure([schema])[0].plan
            copier.begin(dataclasses.replace(task, plan=plan, left=(0,)))
            assert copy_until(copier).failed[task.key].error.code == "table_changed"
            logs.execute(f"grant select on logs_1, logs_2, logs_3b, logs_4 to {role}")
            logs.execute(f'grant select on apart."logs ""A""" to {role}')
            assert not in_pieces()
            logs.execute(f"grant usage on schema apart to {role}")
            assert in_pieces()
            logs.execute("alter table logs_2 enable row level security")
            assert in_pieces(theirs) and not in_pieces()
            logs.execute(
                "alter table logs drop constraint logs_pkey; create foreign data wrapper w;"
                " create server s foreign data wrapper w;"
                " create foreign table logs_9 partition of logs for values from (9) to (10)"
                " server s"
            )
            assert not in_pieces(theirs)
    finally:
        logs.execute(f"drop owned by {role}; drop role {role}")


def test_small_leaves_are_copied_together_and_figures_are_of_all(
    stack, logs, database, topic_prefix
):
    logs.execute("analyze logs_1; analyze logs_2; analyze logs_3b")
    logs.execute(
        "insert into logs select i, 1, repeat('l', 500), 0 from generate_series(501, 900) i"
    )
    (task,) = load_tasks(logs, stack.bootstrap, topic_prefix, ["logs"])
    total = ROWS + 400
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        (measure,) = copier.measure([task.schema])
        (piece,) = measure.plan.pieces
        assert (len(piece.leaves), piece.count) == (LEAVES, 1)
        assert measure.rows == pytest.approx(total, rel=0.15)
        size = "select sum(pg_table_size(relid)) from pg_partition_tree('logs') where isleaf"
        assert measure.total_bytes == logs.execute(size).fetchone()[0]
        # As long as the leaves are locked, what was seen before has to do.
        with psycopg.connect(**database) as locker:
            locker.execute("lock table only logs_1 in access exclusive mode")
            assert copier.measure([task.schema])[0].plan.count == 1
            with closing(open_session(database, "looks")) as session:
                planned = dataclasses.replace(task, plan=measure.plan)
                assert lock_holders(session, planned) == (f"pid {locker.info.backend_pid}",)
        copier.begin(dataclasses.replace(task, plan=measure.plan))
        assert copy_until(copier).total(task) == total
    found = Counter(record.key for record in records_of(stack.bootstrap, task))
    assert len(found) == total and set(found.values()) == {1}
