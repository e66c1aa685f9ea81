"""kill -9 of capture, its workers, the broker and Postgres while tables load: nothing is lost.

Everything is written to while it is loaded, so what was copied before a kill, what was spooled
and what was not yet taken in must come together afterwards.
"""

import random
import time
from collections import Counter

import psycopg
import pytest

from cdc.log.reader import LogReader
from cdc.names import TableId
from cdc.states import DONE
from tests.support import workload
from tests.support.compare import assert_delta_is_source, assert_log_is_source
from tests.support.copying import worker_processes
from tests.support.loading import BIG, Churn, Loading, chunks_done, create_big

TABLES = (BIG, *workload.TABLES)
#: Those that are applied as well: a large one, moved keys, values out of line, truncated, no key.
APPLIED = (BIG, *(TableId("public", name) for name in ("items", "docs", "logs", "clicks")))


@pytest.fixture
def rows(kill_rounds):
    """Of the large table: enough for all kills to come while it is copied."""
    return 6000 * kill_rounds


@pytest.fixture
def partitioned():
    """Whether the large table is."""
    return False


@pytest.fixture
def loading(stack, database, topic_prefix, tmp_path, rows, partitioned):
    workload.create(database)
    create_big(database, rows, partitioned=partitioned)
    with Loading(tmp_path, stack.bootstrap, database, TABLES, prefix=topic_prefix) as pipeline:
        yield pipeline


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("partitioned", [True])
def test_capture_killed_while_tables_load(loading, rows, kill_rounds):
    rng, done = random.Random(21), 0
    with (
        workload.Writers(loading.conninfo, writers=2, seed=7, pause=0.01),
        Churn(loading.conninfo, rows, seed=7),
    ):
        for _ in range(kill_rounds):
            load = loading.wait_chunks(done)
            done = chunks_done(load)
            time.sleep(rng.uniform(0, 1.5))
            loading.kill9("capture")
            assert loading.load().state != DONE, "the kill came too late"
        loading.wait_ready()
    finish(loading)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_snapshot_workers_killed_while_tables_load(loading, rows, kill_rounds):
    rng, done = random.Random(22), 0
    with (
        workload.Writers(loading.conninfo, writers=2, seed=8, pause=0.01),
        Churn(loading.conninfo, rows, seed=8),
    ):
        loading.start_capture()
        pid = loading.capture_pid()
        for _ in range(kill_rounds):
            load = loading.wait_chunks(done)
            done = chunks_done(load)
            time.sleep(rng.uniform(0, 1.5))
            workers = worker_processes(pid)
            assert workers, "nobody copies"
            rng.choice(workers).kill()
        loading.wait_ready()
        # It replaced them by itself.
        assert loading.capture_pid() == pid
    assert loading.output("capture").count("snapshot worker failed") >= kill_rounds
    finish(loading)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_servers_killed_while_tables_load(
    spare_stack, spare_database, topic_prefix, tmp_path, rows, kill_rounds
):
    """Postgres and the broker in turn; in the end the replicas are right as well."""
    stack, conninfo = spare_stack, spare_database
    workload.create(conninfo)
    create_big(conninfo, rows)
    rng, done = random.Random(23), 0
    with Loading(tmp_path, stack.bootstrap, conninfo, APPLIED, prefix=topic_prefix) as pipeline:
        with (
            workload.Writers(conninfo, writers=2, seed=9, pause=0.01),
            Churn(conninfo, rows, seed=9),
        ):
            for number in range(kill_rounds):
                server = (stack.postgres, stack.kafka)[number % 2]
                load = pipeline.wait_chunks(done)
                done = chunks_done(load)
                time.sleep(rng.uniform(0, 1))
                server.kill9()
                time.sleep(rng.uniform(0, 1))
                server.start()
            pipeline.wait_ready()
        finish(pipeline, APPLIED)
        pipeline.start_capture()
        pipeline.start_apply()
        pipeline.wait_applied(APPLIED)
        assert pipeline.stop("apply") == 0
        assert pipeline.stop("capture") == 0
        assert_delta_is_source(pipeline, APPLIED)


def finish(pipeline, tables=TABLES):
    """Stop capture; one load of each table was enough, and the log is what Postgres is."""
    pipeline.wait_ready()
    assert pipeline.stop("capture") == 0
    loads = pipeline.control().loads
    # Workload truncates a table, which may be while it is copied; one has no key.
    again = [f"{id} {n}" for id, n in loads if n > 1 and id.table not in ("logs", "clicks")]
    assert not again, again
    assert_log_is_source(pipeline, tables)


# --- permission that is gone for a while ---


@pytest.mark.timeout(300)
def test_select_revoked_in_the_middle_of_a_load(stack, database, topic_prefix, tmp_path):
    role, rows = f"o_{database['dbname']}", 8000
    create_big(database, rows)
    with psycopg.connect(**database, autocommit=True) as admin:
        admin.execute(f"create role {role} login replication password 'made-up'")
        admin.execute(f"alter table big owner to {role}")
        admin.execute(f"grant create on database {database['dbname']} to {role}")
    conninfo = {**database, "user": role, "password": "made-up"}
    try:
        with Loading(tmp_path, stack.bootstrap, conninfo, [BIG], prefix=topic_prefix) as pipeline:
            check_revoked(pipeline, database, role, rows)
    finally:
        with psycopg.connect(**database, autocommit=True) as admin:
            admin.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                " where database = current_database()"
            )
            admin.execute(f"drop owned by {role} cascade; drop role {role}")


def check_revoked(pipeline, database, role, rows):
    pipeline.start_capture()
    pipeline.wait_chunks(2, revive=False)
    with psycopg.connect(**database, autocommit=True) as admin:
        admin.execute(f"revoke select on big from {role}")
        for attempt in range(2):
            # The one that runs, and one that is started anew.
            assert pipeline.wait_exit("capture") == 2
            told = pipeline.output("capture").splitlines()[-1]
            assert "no_permission" in told and "shop.public.big" in told
            assert "SELECT" in told
            if attempt == 0:
                pipeline.start_capture()
        before = pipeline.load()
        assert 2 < chunks_done(before) < before.chunks
        finished = admin.execute(
            "select id from big where (ctid::text::point)[0]::int / %s = any (%s)",
            (before.step, [n for a, b in before.done for n in range(a, b + 1)]),
        ).fetchall()
        admin.execute(f"grant select on big to {role}")
    pipeline.start_capture()
    pipeline.wait_captured()
    assert pipeline.stop("capture") == 0
    load = pipeline.load()
    assert (load.load, load.state, load.rows) == (before.load, DONE, rows)
    assert_log_is_source(pipeline, [BIG])
    with LogReader(pipeline.bootstrap, topic_prefix=pipeline.prefix) as reader:
        view = reader.frontier(pipeline.source)
        assert view is not None
        records = reader.records(load.topic, 0, 0, view.ends[load.topic][0])
        read = Counter((r.after or {})["id"] for r in records)
    assert finished and all(read[id] == 1 for (id,) in finished)
