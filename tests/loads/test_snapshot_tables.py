"""Tables that change, are locked, or may not be read while they are loaded."""

import dataclasses
import threading
import time
from contextlib import closing

import psycopg
import pytest

from cdc.load import ChunkPlan
from snapshots.copier import ChunkCopier
from tests.support.copying import records_of, worker_processes
from tests.support.export import copy_settings, copy_until, load_tasks

pytestmark = pytest.mark.timeout(120)

ROWS = 20_000
TABLES = f"""
create table big (id bigint primary key, n int not null, note text, at timestamptz);
insert into big select i, i % 97, repeat('x', i % 50), timestamptz '2024-01-01' + i * interval '1 s'
    from generate_series(1, {ROWS}) i;
create table small (id int primary key);
insert into small select generate_series(1, 500);
"""


@pytest.fixture
def source(database):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


#: Statements, and how the load of the table ends by them.
CHANGES = {
    "truncated": ("truncate {t}", "table_rewritten"),
    "vacuumed": ("vacuum full {t}", "table_rewritten"),
    "clustered": ("cluster {t} using {t}_pkey", "table_rewritten"),
    "dropped": ("drop table {t}", "table_rewritten"),
    "renamed": ("alter table {t} rename to other", "table_rewritten"),
    "replaced": (
        "alter table {t} rename to old; create table {t} (like old including all);"
        " insert into {t} select * from old",
        "table_rewritten",
    ),
    "names_swapped": (
        "alter table {t} rename note to x; alter table {t} add note text",
        "table_changed",
    ),
    "column_dropped": ("alter table {t} drop note", "table_changed"),
    "retyped": ("alter table {t} alter note type varchar", "table_changed"),
    "rewritten": ("alter table {t} alter n type bigint", "table_rewritten"),
    "defaulted": ("alter table {t} add r float default random()", "table_rewritten"),
}


def test_a_table_that_changes_between_two_chunks_ends_its_load_alone(
    stack, source, database, topic_prefix
):
    for table in CHANGES:
        source.execute(
            f"create table {table} (id bigint primary key, n int not null, note text);"
            f"insert into {table} select i, i, repeat('x', i % 50) from generate_series(1, 2000) i"
        )
    *changed, small = load_tasks(source, stack.bootstrap, topic_prefix, [*CHANGES, "small"])
    # Two chunks, the second of which is not read before the change.
    first = []
    for task in changed:
        plan = ChunkPlan.whole(task.plan.size // 2, 2)
        first.append(dataclasses.replace(task, plan=plan, left=(0,)))
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        for task in first:
            copier.begin(task)
        copied = copy_until(copier)
        assert not copied.failed
        rows = {task.key: copied.total(task) for task in changed}
        for table, (statements, _) in CHANGES.items():
            for statement in statements.split(";"):
                source.execute(statement.format(t=table))
        for task in first:
            copier.begin(dataclasses.replace(task, left=(1,)))
        copier.begin(small)
        copy_until(copier, copied=copied)
        assert worker_processes()
    assert copied.total(small) == 500
    for task, (table, (_, code)) in zip(changed, CHANGES.items(), strict=True):
        error = copied.failed[task.key].error
        assert (error.code, error.table) == (code, f"shop.public.{table}")
        assert 0 < rows[task.key] < 2000
        assert len(list(records_of(stack.bootstrap, task))) == rows[task.key]


def test_a_rewrite_waits_for_the_chunk_that_is_being_copied(stack, source, database, topic_prefix):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"], chunk_blocks=60)
    assert task.plan.count > 2
    settings = copy_settings(stack.bootstrap, database, workers=1, rows_per_second=4000)

    def rewrite():
        with psycopg.connect(**database, autocommit=True) as connection:
            connection.execute("vacuum full big")

    with closing(ChunkCopier(settings)) as copier:
        copier.begin(task)
        copied = copy_until(copier, lambda c: c.total(task) > 0)
        thread = threading.Thread(target=rewrite)
        thread.start()
        copy_until(copier, copied=copied)
        thread.join()
    assert copied.failed[task.key].error.code == "table_rewritten"
    # All chunks that are done are whole: they were read before the rewrite.
    assert len(list(records_of(stack.bootstrap, task))) == copied.total(task) < ROWS


def test_what_does_not_touch_the_rows_is_no_obstacle(stack, source, database, topic_prefix):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"], chunk_blocks=60)
    source.execute("alter table big add more text; create index on big (n)")
    source.execute("vacuum big")
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        copier.begin(task)
        assert copy_until(copier).total(task) == ROWS
    record = next(iter(records_of(stack.bootstrap, task)))
    assert list(record.after) == ["id", "n", "note", "at"]


def test_rows_of_child_tables_are_not_copied(stack, source, database, topic_prefix):
    source.execute("truncate small; create table child () inherits (small)")
    source.execute("insert into child values (1)")
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["small"])
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        copier.begin(task)
        assert copy_until(copier).rows == {task.key: {0: 0}}


def test_a_table_grows_while_it_is_loaded(stack, source, database, topic_prefix):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"], chunk_blocks=60)
    source.execute(f"insert into big select i + {ROWS}, 0 from generate_series(1, 30000) i")
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        copier.begin(task)
        assert copy_until(copier).total(task) == ROWS + 30_000


@pytest.fixture
def reader(source, database):
    role = f"r_{database['dbname']}"
    source.execute(
        f"create role {role} login password 'made-up'; grant select on big, small to {role}"
    )
    yield {**database, "user": role, "password": "made-up"}
    source.execute(f"drop owned by {role}; drop role {role}")


def test_done_chunks_need_no_permission_and_others_fail_with_a_remedy(
    stack, source, database, topic_prefix, reader
):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"], chunk_blocks=60)
    settings = copy_settings(stack.bootstrap, reader)
    with closing(ChunkCopier(settings)) as copier:
        copier.begin(dataclasses.replace(task, left=(0,)))
        copied = copy_until(copier)
        source.execute(f"revoke select on big from {reader['user']}")
        copier.begin(dataclasses.replace(task, left=task.left[1:]))
        copy_until(copier, copied=copied)
        error = copied.failed[task.key].error
        assert (error.code, error.table) == ("no_permission", "shop.public.big")
        assert "SELECT" in str(error.remedy)
        source.execute(f"grant select on big to {reader['user']}")
        again = copy_until_done(copier, dataclasses.replace(task, left=task.left[1:]))
    assert copied.total(task) + again.total(task) == ROWS
    assert len(list(records_of(stack.bootstrap, task))) == ROWS


def copy_until_done(copier, task):
    copier.begin(task)
    return copy_until(copier)


def test_hidden_rows_refuse_the_load(stack, source, database, topic_prefix, reader):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"])
    source.execute(
        "alter table big enable row level security; create policy p on big using (n > 5)"
    )
    with closing(ChunkCopier(copy_settings(stack.bootstrap, reader))) as copier:
        error = copy_until_done(copier, task).failed[task.key].error
        assert (error.code, error.table) == ("row_security", "shop.public.big")
        source.execute("alter table big disable row level security")
        assert copy_until_done(copier, task).total(task) == ROWS


def test_a_locked_table_waits_and_others_go_on(stack, source, database, topic_prefix, capfd):
    big, small = load_tasks(source, stack.bootstrap, topic_prefix, ["big", "small"])
    settings = copy_settings(stack.bootstrap, database, workers=1)
    with closing(ChunkCopier(settings)) as copier, psycopg.connect(**database) as locker:
        locker.execute("lock table big in access exclusive mode")
        pid = locker.info.backend_pid
        copier.begin(big)
        copier.begin(small)
        began = time.monotonic()
        copied = copy_until(copier, lambda c: c.total(small) == 500)
        # As long as a chunk waits for a lock, not more: whoever waits behind us waits as long.
        assert 9 < time.monotonic() - began < 25
        assert copied.rows.keys() == {small.key}
        locker.rollback()
        copy_until(copier, copied=copied)
    assert copied.total(big) == ROWS
    assert not copied.failed
    shown = capfd.readouterr()
    assert f"pid {pid}" in shown.out + shown.err


def test_a_row_over_the_limit_names_its_table(stack, source, database, topic_prefix):
    source.execute(
        "insert into big select 99999, 1, string_agg(md5(i::text), '')"
        " from generate_series(1, 2000) i"
    )
    big, small = load_tasks(
        source, stack.bootstrap, topic_prefix, ["big", "small"], max_message_bytes=20_000
    )
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        copier.begin(big)
        copier.begin(small)
        copied = copy_until(copier)
    error = copied.failed[big.key].error
    assert (error.code, error.table) == ("record_too_large", "shop.public.big")
    assert copied.total(small) == 500


def test_a_topic_that_is_not_as_the_load_made_it(stack, source, database, topic_prefix):
    (task,) = load_tasks(source, stack.bootstrap, topic_prefix, ["big"])
    missing = dataclasses.replace(task, topic=f"{topic_prefix}missing")
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database))) as copier:
        assert copy_until_done(copier, missing).failed[task.key].error.code == "topic_differs"
        other = dataclasses.replace(task, partitions=2)
        assert copy_until_done(copier, other).failed[task.key].error.code == "topic_differs"


def test_text_that_is_not_utf8_is_refused_without_showing_it(stack, topic_prefix, capfd):
    name = f"ascii_{topic_prefix[:-1]}"
    conninfo = stack.postgres.create_database(
        name, "encoding 'SQL_ASCII' template template0 lc_collate 'C' lc_ctype 'C'"
    )
    try:
        with psycopg.connect(**conninfo, autocommit=True) as connection:
            connection.execute("set client_encoding = 'SQL_ASCII'")
            connection.execute("create table big (id int primary key, note text)")
            connection.execute(rb"insert into big values (1, E'secret\xe9')")
        with psycopg.connect(**conninfo, autocommit=True, client_encoding="UTF8") as connection:
            (task,) = load_tasks(connection, stack.bootstrap, topic_prefix, ["big"])
        with closing(ChunkCopier(copy_settings(stack.bootstrap, conninfo))) as copier:
            error = copy_until_done(copier, task).failed[task.key].error
        assert (error.code, error.table) == ("bad_value", "shop.public.big")
        assert "note" in error.message
        shown = capfd.readouterr()
        assert "secret" not in f"{error}{shown.out}{shown.err}"
        assert "0xe9" not in f"{error}{shown.out}{shown.err}"
    finally:
        stack.postgres.drop_database(name)
