"""Postgres → Kafka → Spark → Delta: replicas and queries hold what Postgres holds."""

import json
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.names import TableId, lake_folder
from tests.support import workload
from tests.support.compare import assert_delta_is_source, assert_query_is_source
from tests.support.pipeline import SOURCE, Pipeline

pytestmark = pytest.mark.timeout(900)

TABLES = workload.TABLES
REBUILT = (TableId("public", "accounts_a"),)


@pytest.fixture(scope="module")
def pipeline(stack, tmp_path_factory):
    """One pipeline with all its processes, after snapshot and 10,000 changes."""
    conninfo = stack.postgres.create_database("whole_pipeline")
    workload.create(conninfo)
    folder = tmp_path_factory.mktemp("whole")
    with Pipeline(folder, stack.bootstrap, conninfo, TABLES, prefix="whole.") as running:
        running.start_daemon()
        running.wait_until(lambda: running.frontier() is not None, 60, "the snapshot", "daemon")
        workload.run(conninfo, changes=10_000, writers=3, seed=21)
        running.wait_captured(watch="daemon")
        yield running
        assert running.stop("daemon") == 0
    stack.postgres.drop_database("whole_pipeline")


def test_replicas_and_queries_equal_postgres(pipeline):
    assert_query_is_source(pipeline, TABLES)
    pipeline.wait_applied(TABLES)
    assert_delta_is_source(pipeline, TABLES)
    assert_query_is_source(pipeline, TABLES)


def test_every_query_over_two_tables_sees_whole_transactions(pipeline):
    total = """select (select sum(balance) from shop.public.accounts_a)
                    + (select sum(balance) from shop.public.accounts_b) as total"""
    with workload.Writers(pipeline.conninfo, writers=2, seed=8, pause=0.002):
        for _ in range(20):
            assert pipeline.query(total) == [[workload.BANK_TOTAL]]


def test_rebuild_while_writes_go_on_and_readers_read(pipeline):
    pipeline.wait_applied(TABLES)
    path = lake_folder(str(pipeline.lake), SOURCE, "public", "accounts_a")
    before = len(list_commits(path))
    bad, stop = [], threading.Event()

    def read_in_a_loop():
        # The steps of a rebuild take seconds; without a pause this takes a core from them.
        while not stop.wait(0.05):
            found = QueryBuilder().register("t", DeltaTable(path)).execute("select id from t")
            ids = sorted(pa.table(found.read_all())["id"].to_pylist())
            if ids != list(range(1, 21)):
                bad.append(ids)

    reader = threading.Thread(target=read_in_a_loop, daemon=True)
    reader.start()
    try:
        with workload.Writers(pipeline.conninfo, writers=1, seed=9, pause=0.05):
            words = ("rebuild", "shop.public.accounts_a", "--from-offset", "0", "--json")
            done = pipeline.cli(*words, timeout=400)
            time.sleep(1)
    finally:
        stop.set()
        reader.join(30)
    assert json.loads(done.stdout)["ok"]
    assert not bad, "a reader saw something between old and new"
    swaps = [c for c in list_commits(path)[before:] if is_swap(c)]
    assert len(swaps) == 1
    kinds = {kind for line in swaps[0] for kind in line}
    assert {"metaData", "txn", "add", "remove"} <= kinds
    pipeline.wait_captured(watch="daemon")
    pipeline.wait_applied(REBUILT)
    assert_delta_is_source(pipeline, REBUILT)
    assert_query_is_source(pipeline, TABLES)


def list_commits(path):
    """The actions of each commit, in order."""
    files = Path(path, "_delta_log").glob("*.json")
    log = sorted((p for p in files if p.stem.isdigit()), key=lambda p: p.stem)
    return [[json.loads(line) for line in p.read_text().splitlines()] for p in log]


def is_swap(actions):
    return any("metaData" in action for action in actions)
