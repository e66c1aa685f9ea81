"""A server that is killed under a load, and comes back: the load goes on where it was."""

import time
from contextlib import closing

import psycopg
import pytest

from snapshots.copier import ChunkCopier
from tests.support.copying import records_of
from tests.support.export import copy_settings, copy_until, load_tasks

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

ROWS = 100_000


@pytest.mark.parametrize("server", ["postgres", "kafka"])
@pytest.mark.parametrize("how", ["kill9", "stop"])
def test_a_load_outlives_its_servers(own_stack, topic_prefix, server, how):
    stack = own_stack()
    conninfo = stack.postgres.create_database("load")
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        connection.execute("create table big (id bigint primary key, note text)")
        connection.execute(
            f"insert into big select i, repeat('x', 90) from generate_series(1, {ROWS}) i"
        )
        (task,) = load_tasks(connection, stack.bootstrap, topic_prefix, ["big"], chunk_blocks=200)
    settings = copy_settings(stack.bootstrap, conninfo, rows_per_second=20_000)
    with closing(ChunkCopier(settings)) as copier:
        copier.begin(task)
        copied = copy_until(copier, lambda c: c.total(task) > 0)
        getattr(getattr(stack, server), how)()
        back_at = time.monotonic() + 5
        copy_until(copier, lambda _: time.monotonic() > back_at, copied=copied)
        assert copier.busy and not copied.failed
        done = copied.total(task)
        getattr(stack, server).start()
        copy_until(copier, copied=copied, seconds=200)
    assert 0 < done < ROWS
    assert not copied.failed
    assert copied.total(task) == ROWS
    ids = [record.after["id"] for record in records_of(stack.bootstrap, task)]
    assert set(ids) == set(range(1, ROWS + 1))
    # A commit of which a worker did not hear is the only reason to copy a chunk again.
    if server == "postgres":
        assert len(ids) == ROWS
