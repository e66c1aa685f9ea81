"""``cdc status``: figures of slot, log and replicas, and what is told when a part is down."""

import json
import subprocess
import sys

import psycopg
import pytest

from cdc import codecs
from cdc.config import load_config
from cdc.position import format_lsn
from cdc.states import ADDED, CATCHING_UP, ERRORED, READY, SNAPSHOTTING
from cdc.status import collect_status, render_status
from tests.support.loggen import Insert, LogGen
from tests.support.replicas import write_replica
from tests.support.schemas import table_schema

ORDERS = table_schema(("id", codecs.INT8), ("a", codecs.TEXT))
CUSTOMERS = table_schema(("id", codecs.INT8), ("a", codecs.TEXT), table="customers")


@pytest.fixture
def written(stack, database, topic_prefix, tmp_path):
    """cdc.yaml of a project on the real servers, and its folder."""
    info = psycopg.conninfo.make_conninfo("", **database)
    server = psycopg.conninfo.conninfo_to_dict(info)
    (tmp_path / "password").write_text(str(server.get("password", "")))
    (tmp_path / "cdc.yaml").write_text(
        f"""\
project: test
log: {{bootstrap_servers: "{stack.bootstrap}", topic_prefix: "{topic_prefix}"}}
lake: {{path: ./lake}}
sources:
  shop:
    kind: postgres
    host: "{server["host"]}"
    port: {server["port"]}
    database: {server["dbname"]}
    user: {server["user"]}
    password: {{file: password}}
    tables: [public.orders, public.customers]
"""
    )
    return tmp_path


@pytest.fixture
def config(written):
    return load_config(written / "cdc.yaml")


@pytest.fixture
def gen(stack, topic_prefix):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        gen.create([ORDERS, CUSTOMERS], partitions=2)
        yield gen


def make_slot(database, config):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')",
            [config.sources["shop"].slot_name],
        )
        connection.execute("create table filler as select generate_series(1, 5000) a")


def test_before_the_first_start(config, database):
    status = collect_status(config)
    shop = status["sources"]["shop"]
    assert shop["state"] == "NotStarted"
    assert shop["position"] is None
    assert shop["slot"]["found"] is False
    assert shop["slot_lag_bytes"] is None
    assert status["replicas"] == {}
    assert "NotStarted" in render_status(status)


def test_slot_tables_and_replicas(config, database, gen):
    make_slot(database, config)
    gen.load({ORDERS.id: [[b"1", b"x"]], CUSTOMERS.id: [[b"1", b"x"]]})
    orders = gen.tables[ORDERS.id]
    applied = gen.position
    write_replica(
        config.lake.path,
        "shop",
        ORDERS,
        gen.rows[ORDERS.id],
        applied,
        orders.topic_id,
        ends=gen.ends[orders.topic],
    )
    shop = collect_status(config)["sources"]["shop"]
    assert shop["slot"]["found"] and shop["slot"]["active"] is False
    assert shop["slot_lag_bytes"] > 100_000
    assert shop["slot"]["retained_bytes"] >= shop["slot_lag_bytes"]
    assert shop["state"] == "Ready"
    assert shop["position"] == str(applied)
    assert 0 <= shop["age_seconds"] < 60
    assert shop["tables"]["public.orders"]["state"] == "Ready"
    status = collect_status(config)
    assert status["replicas"]["shop.public.orders"] == {
        "position": str(applied),
        "end_lsn": format_lsn(applied.lsn),
        "version": 0,
        "behind_records": 0,
        "behind_seconds": 0.0,
        "out_of_range": {},
        "error": None,
    }
    # Nothing was applied yet: all of the topic is still to come.
    assert status["replicas"]["shop.public.customers"]["position"] is None
    assert status["replicas"]["shop.public.customers"]["behind_records"] >= 1
    gen.keepalive()
    assert collect_status(config)["replicas"]["shop.public.orders"]["behind_records"] == 0
    gen.transaction(Insert(ORDERS.id, [b"2", b"y"]))
    behind = collect_status(config)["replicas"]["shop.public.orders"]
    assert 1 <= behind["behind_records"] <= 3
    assert behind["behind_seconds"] >= 0
    text = render_status(collect_status(config))
    assert format_lsn(applied.lsn) in text
    assert "shop.public.customers" in text


def test_a_replica_without_a_note_is_found_in_the_frontiers(config, gen):
    gen.load({ORDERS.id: [[b"1", b"x"]], CUSTOMERS.id: []})
    topic_id = gen.tables[ORDERS.id].topic_id
    lake = config.lake.path
    write_replica(lake, "shop", ORDERS, gen.rows[ORDERS.id], gen.position, topic_id)
    assert collect_status(config)["replicas"]["shop.public.orders"]["behind_records"] == 0


def test_errored_tables_say_why(config, gen):
    gen.load({ORDERS.id: [[b"1", b"x"]], CUSTOMERS.id: []})
    gen.set_state(
        ORDERS.id, ERRORED, reason="column a was dropped", remedy="put it back",
        last_good=gen.position,
    )  # fmt: skip
    status = collect_status(config)
    assert status["sources"]["shop"]["state"] == "Errored"
    assert status["sources"]["shop"]["tables"]["public.orders"]["last_good"] == str(gen.position)
    text = render_status(status)
    assert "shop.public.orders: column a was dropped\n  remedy: put it back" in text


def test_loads_under_way(config, gen):
    gen.load({ORDERS.id: [[b"1", b"x"]], CUSTOMERS.id: []})
    shop = collect_status(config)["sources"]["shop"]
    assert shop["tables"]["public.orders"]["loading"] is None
    assert "LOADING" not in render_status(collect_status(config))
    # The later load of a table that stays Ready, and the first load of another.
    gen.set_load(ORDERS.id, 2, rows=1200, estimate=5000, chunks=13, done=((0, 2),))
    gen.set_state(CUSTOMERS.id, SNAPSHOTTING, ready_from=None)
    gen.set_load(CUSTOMERS.id, 1, state="intended")
    status = collect_status(config)
    tables = status["sources"]["shop"]["tables"]
    assert tables["public.orders"]["state"] == "Ready"
    assert tables["public.orders"]["load"] == 1
    assert tables["public.orders"]["loading"] == {
        "load": 2,
        "state": "copying",
        "rows": 1200,
        "estimate": 5000,
        "chunks_done": 3,
        "chunks": 13,
        "rows_per_second": None,
        "seconds_left": None,
    }
    assert tables["public.customers"]["loading"]["chunks"] == 0
    lines = [line.split("  ") for line in render_status(status).splitlines()]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    header = rows.index(["LOADING", "LOAD", "STATE", "CHUNKS", "ROWS", "ROWS/S", "LEFT"])
    assert rows[header + 1] == [
        "shop.public.orders", "2", "copying", "3 of 13", "1,200 of about 5,000 (24 %)", "-", "-"
    ]  # fmt: skip
    assert rows[header + 2] == ["shop.public.customers", "1", "intended", "-", "0", "-", "-"]
    tables["public.orders"]["loading"] |= {"rows_per_second": 1234.5, "seconds_left": 90.0}
    assert "1,234" in render_status(status) and "90.0 s" in render_status(status)


def test_the_source_is_where_its_last_table_is(config, gen):
    gen.load({ORDERS.id: [[b"1", b"x"]], CUSTOMERS.id: []})
    for states, expected in (
        ((READY, CATCHING_UP), CATCHING_UP),
        ((CATCHING_UP, SNAPSHOTTING), SNAPSHOTTING),
        ((ADDED, SNAPSHOTTING), ADDED),
        ((ADDED, ERRORED), ERRORED),
    ):
        for table, state in zip((ORDERS, CUSTOMERS), states, strict=True):
            gen.set_state(table.id, state, ready_from=None)
        assert collect_status(config)["sources"]["shop"]["state"] == expected


def test_a_table_that_is_not_a_replica(config, gen):
    import pyarrow as pa
    from deltalake import write_deltalake

    gen.load({ORDERS.id: [], CUSTOMERS.id: []})
    write_deltalake(f"{config.lake.path}/shop/public/orders", pa.table({"a": [1]}))
    replica = collect_status(config)["replicas"]["shop.public.orders"]
    assert replica["error"]["code"] == "not_a_replica"
    assert "not made by cdc" in render_status(collect_status(config))


def test_servers_that_are_down_are_told(written, monkeypatch):
    monkeypatch.setattr("cdc.log.settings.COMMAND_REFUSED_AFTER", 0.5)
    path = written / "cdc.yaml"
    text = path.read_text()
    path.write_text(text.replace("port: ", "port: 1 # "))
    status = collect_status(load_config(path))
    shop = status["sources"]["shop"]
    assert shop["source_error"]["code"] == "source_unreachable"
    assert shop["slot"] is None and shop["slot_lag_bytes"] is None
    assert shop["error"] is None
    bootstrap = text.split('"')[1]
    path.write_text(text.replace(bootstrap, "127.0.0.1:1"))
    status = collect_status(load_config(path))
    shop = status["sources"]["shop"]
    assert shop["error"]["code"] == "kafka_unreachable"
    assert shop["state"] == "Unknown"
    assert shop["slot"]["found"] is False
    assert "source shop:" in render_status(status)


def test_the_password_is_not_told(written):
    (written / "password").write_text("wrong-secret-word")
    status = collect_status(load_config(written / "cdc.yaml"))
    assert "wrong-secret-word" not in json.dumps(status)


def test_the_command_works_without_a_daemon(written, config, gen):
    gen.load({ORDERS.id: [[b"1", b"x"]], CUSTOMERS.id: []})
    command = [sys.executable, "-m", "cdc.cli.main", "-c", str(written / "cdc.yaml"), "status"]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["daemon"] == {"running": False}
    assert result["sources"]["shop"]["tables"]["public.orders"]["state"] == "Ready"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "daemon: not running" in done.stdout
    assert "shop.public.orders" in done.stdout
