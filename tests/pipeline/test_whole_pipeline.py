"""A day of one pipeline with all its processes: Postgres → Kafka → Spark → Delta, and back.

The tests follow each other, so that one daemon serves them all; each can also run alone.
"""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.lake import open_replica
from cdc.log.admin import LogAdmin
from cdc.names import TableId, lake_folder
from cdc.states import ABANDONED, READY
from tests.support import workload
from tests.support.bend import change_a_balance
from tests.support.compare import assert_delta_is_source, assert_query_is_source
from tests.support.pipeline import SOURCE, Pipeline

pytestmark = pytest.mark.timeout(900)

TABLES = workload.TABLES
NAMES = [f"{SOURCE}.{table}" for table in TABLES]
REBUILT = TableId("public", "accounts_a")
#: Of a thousand rows, so that loading it takes seconds.
SERVED = TableId("public", "p_served")


@pytest.fixture(scope="module")
def pipeline(stack, tmp_path_factory):
    """One that has loaded its tables and captured 5,000 changes."""
    conninfo = stack.postgres.create_database("whole_pipeline")
    workload.create(conninfo)
    sql(
        conninfo,
        "create table p_served (id int primary key, n int)",
        "insert into p_served select i, 0 from generate_series(1, 1000) i",
    )
    with Pipeline(
        tmp_path_factory.mktemp("whole"),
        stack.bootstrap,
        conninfo,
        [*TABLES, "public.p_*"],
        prefix="whole.",
        interval="4s",
        snapshot="{rows_per_second: 200}",
    ) as running:
        running.start_daemon()
        running.wait_until(lambda: running.frontier() is not None, 60, "the snapshot", "daemon")
        workload.run(conninfo, changes=5_000, writers=3, seed=21)
        running.wait_captured(watch="daemon")
        yield running
        if running.running("daemon"):
            assert running.stop("daemon") == 0
    stack.postgres.drop_database("whole_pipeline")


def test_every_query_over_two_tables_sees_whole_transactions(pipeline):
    total = """select (select sum(balance) from shop.public.accounts_a)
                    + (select sum(balance) from shop.public.accounts_b) as total"""
    with workload.Writers(pipeline.conninfo, writers=2, seed=8, pause=0.002):
        for _ in range(20):
            assert pipeline.query(total) == [[workload.BANK_TOTAL]]


def test_verify_while_writers_write(pipeline):
    seen = set()
    with workload.Writers(pipeline.conninfo, writers=2, seed=4, pause=0.02):
        for _ in range(2):
            tables = verified(pipeline)
            # They truncate it now and then, which no snapshot survives.
            if (logs := tables["logs"])["outcome"] == "refused":
                assert logs["error"]["code"] == "table_altered"
                del tables["logs"]
            assert {table["outcome"] for table in tables.values()} == {"equal"}
            positions = {table["position"] for table in tables.values()}
            assert len(positions) == 1
            seen |= positions
    assert len(seen) == 2


def test_replicas_and_queries_equal_postgres(pipeline):
    pipeline.wait_captured(watch="daemon")
    assert_query_is_source(pipeline, TABLES)
    pipeline.wait_applied(TABLES)
    assert_delta_is_source(pipeline, TABLES)
    assert_query_is_source(pipeline, TABLES)
    for table in verified(pipeline, "--replica").values():
        assert table["outcome"] == "equal", table
        assert table["replica_position"] and not table["tail_keys"]


def test_a_table_is_loaded_anew_while_it_is_served(pipeline):
    count = "select count(*), sum(n) from shop.public.p_served"

    def replica():
        return open_replica(lake_folder(str(pipeline.lake), SOURCE, *SERVED))

    pipeline.wait_applied([SERVED])
    before = replica()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(pipeline.cli, "snapshot", "shop.public.p_served", "--json")
        answers: list[Any] = []
        while not asked.done():
            sql(
                pipeline.conninfo,
                f"update p_served set n = n + 1 where id = {len(answers) + 1}",
            )
            pipeline.wait_captured(watch="daemon")
            answers.append(pipeline.query(count))
        assert asked.result().returncode == 0
    # Served at every moment, and never older than what was in the log.
    assert len(answers) > 1
    assert answers == [[[1000, n]] for n in range(1, len(answers) + 1)]
    sql(pipeline.conninfo, "delete from p_served where id = 1000")
    pipeline.wait_captured(watch="daemon")
    assert pipeline.query(count) == [[999, len(answers)]]
    record = pipeline.control().tables[SERVED]
    assert (record.load, record.state) == (2, READY)
    pipeline.wait_until(
        lambda: replica().app.topic_id == record.topic_id, 90, "apply to follow", every=1
    )
    after = replica()
    assert after.app.generation == before.app.generation + 1
    pipeline.wait_applied([SERVED], timeout=60)
    assert pipeline.query(count) == [[999, len(answers)]]


def test_tables_of_a_pattern_come_and_go(pipeline):
    def ready(*tables):
        def captured():
            found = pipeline.control().tables
            return all(found[TableId("public", table)].state == READY for table in tables)

        pipeline.wait_until(captured, 90, f"{tables} to be Ready", "daemon")

    def query(table):
        text = f"select count(*) from shop.public.{table}"
        done = pipeline.cli("query", "--json", text, check=False)
        answer = json.loads(done.stdout)
        return answer["result"]["rows"] if answer["ok"] else answer["error"]["code"]

    sql(pipeline.conninfo, "create table p_keyless (id int)", "insert into p_keyless values (1)")
    told = pipeline.cli("reload").stdout
    assert "set aside: shop.public.p_keyless: has no primary key" in told
    shown = pipeline.status()["sources"][SOURCE]
    assert (shown["state"], shown["tables"]["public.items"]["state"]) == ("Ready", "Ready")
    aside = shown["tables"]["public.p_keyless"]
    assert aside["state"] == "Errored"
    assert "no primary key" in aside["reason"] and "ADD PRIMARY KEY" in aside["remedy"]
    assert query("p_keyless") == "table_errored"

    # A new table, and one that is mended: the same command captures both.
    sql(
        pipeline.conninfo,
        "create table p_late (id int primary key)",
        "insert into p_late values (1), (2), (3)",
        "alter table p_keyless add primary key (id)",
        "create view p_view as select 1 as one",
    )
    told = pipeline.cli("reload").stdout
    captured = told.splitlines()[0].removeprefix("captured: ").split(", ")
    assert captured == [*NAMES, *(f"shop.public.p_{n}" for n in ("keyless", "late", "served"))]
    assert "set aside: shop.public.p_view: is a view" in told and "by `except`" in told
    ready("p_late", "p_keyless")
    assert query("p_late") == [[3]]
    text = pipeline.cli("status").stdout
    assert "shop.public.p_view: is a view" in text and "  remedy: take public.p_view out" in text
    anew = pipeline.cli("snapshot", "shop.public.p_late")
    assert "loaded anew: shop.public.p_late (load 2)" in anew.stdout
    assert anew.stderr.splitlines()[-1] == "  shop.public.p_late: loaded"
    assert pipeline.cli("snapshot", "shop.other.x", check=False).returncode == 2
    folder = lake_folder(str(pipeline.lake), SOURCE, "public", "p_late")
    pipeline.wait_until(
        lambda: open_replica(folder) is not None, 120, "the derived table", "daemon", every=1
    )

    # Dropped: its data stays.
    gone = ("drop table p_late", "drop view p_view", "insert into p_keyless values (2)")
    sql(pipeline.conninfo, *gone)
    left = json.loads(pipeline.cli("reload", "--json").stdout)["result"]["sources"][SOURCE]
    assert left == [name for name in captured if name != "shop.public.p_late"]
    assert "public.p_late" not in pipeline.status()["sources"][SOURCE]["tables"]
    assert query("p_late") == "table_removed"
    assert open_replica(folder) is not None
    pipeline.wait_until(lambda: query("p_keyless") == [[2]], 60, "2 rows", "daemon", every=1)


def test_rebuild_while_writes_go_on_and_readers_read(pipeline):
    pipeline.wait_applied([REBUILT])
    path = lake_folder(str(pipeline.lake), SOURCE, *REBUILT)
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
            words = ("rebuild", f"{SOURCE}.{REBUILT}", "--from-offset", "0", "--json")
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
    pipeline.wait_applied([REBUILT])
    assert_delta_is_source(pipeline, [REBUILT])
    assert_query_is_source(pipeline, TABLES)


def test_verify_finds_a_changed_file(pipeline):
    pipeline.wait_applied([REBUILT])
    id = change_a_balance(lake_folder(str(pipeline.lake), SOURCE, *REBUILT))
    found = verified(pipeline, "--replica", f"{SOURCE}.{REBUILT}")["accounts_a"]
    assert found["differences"] == [
        {"kind": "different", "key": {"id": id}, "columns": ["balance"]}
    ]


def test_destroy_takes_it_all_away(pipeline):
    pipeline.wait_applied([SERVED, REBUILT])
    loads = pipeline.control().loads.values()
    assert pipeline.stop("daemon") == 0
    admin = LogAdmin(pipeline.bootstrap)
    assert all(admin.exists(record.topic) for record in loads if record.state != ABANDONED)
    # Also of tables that were dropped.
    folders = {str(folder.parent) for folder in pipeline.lake.rglob("_delta_log")}
    assert folders >= {lake_folder(str(pipeline.lake), SOURCE, *t) for t in (SERVED, REBUILT)}
    removed = json.loads(pipeline.cli("destroy", "--source", SOURCE, "--json").stdout)
    assert not [folder for folder in folders if folder not in str(removed["result"]["removed"])]
    assert not [folder for folder in folders if Path(folder).exists()]
    assert not any(admin.exists(record.topic) for record in loads)


def sql(conninfo, *statements):
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def verified(pipeline, *arguments):
    """Table to its result; without names, of all tables that are captured."""
    captured = pipeline.status()["sources"][SOURCE]["tables"]
    done = pipeline.cli("verify", "--json", *arguments, check=False)
    tables = json.loads(done.stdout)["result"]["tables"]
    equal = all(table["outcome"] == "equal" for table in tables)
    assert done.returncode == (0 if equal else 1), done.stdout + done.stderr
    found = {table["table"]: table for table in tables}
    asked = {word for word in arguments if not word.startswith("--")}
    assert found.keys() == (asked or {f"{SOURCE}.{table}" for table in captured})
    return {name.split(".")[-1]: table for name, table in found.items()}


def list_commits(path):
    """The actions of each commit, in order."""
    files = Path(path, "_delta_log").glob("*.json")
    log = sorted((p for p in files if p.stem.isdigit()), key=lambda p: p.stem)
    return [[json.loads(line) for line in p.read_text().splitlines()] for p in log]


def is_swap(actions):
    return any("metaData" in action for action in actions)
