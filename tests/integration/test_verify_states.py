"""``cdc verify`` where a table cannot be compared, or the command is cut off."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc import codecs
from cdc.cli.main import run
from cdc.config import load_config
from cdc.errors import ConfigError
from cdc.states import ERRORED, SNAPSHOTTING
from cdc.verify.run import VerifyOptions, run_verify
from tests.support.capturing import Capturing
from tests.support.loggen import LogGen
from tests.support.schemas import table_schema
from tests.support.verifying import Verifying

ORDERS = table_schema(("id", codecs.INT8), ("note", codecs.TEXT))
CUSTOMERS = table_schema(("id", codecs.INT4), ("name", codecs.TEXT), table="customers")


@dataclass
class Snapshot:
    """Of a made-up source; no table of it is ever read."""

    consistent_point: int
    sysid: str = "1"

    def nudge(self):
        raise AssertionError("the log has passed it")

    def table(self, schema):
        raise AssertionError(f"{schema.id} is not to be read")


@dataclass
class Project:
    gen: LogGen
    path: Path

    def verify(self, *tables, sysid="1", **options):
        @contextmanager
        def open_source(source):
            yield Snapshot(self.gen.lsn, sysid)

        config = load_config(self.path)
        found = run_verify(config, tables, open_source, VerifyOptions(**options))
        return {table.table.split(".")[-1]: table for table in found.tables}


@pytest.fixture
def project(stack, topic_prefix, tmp_path):
    """A made-up log of orders and customers, both loading."""
    path = tmp_path / "cdc.yaml"
    path.write_text(
        f"""\
project: test
log: {{bootstrap_servers: "{stack.bootstrap}", topic_prefix: "{topic_prefix}"}}
lake: {{path: ./lake}}
sources:
  shop: {{kind: postgres, host: localhost, database: shop, user: nobody,
          tables: [public.orders, public.customers]}}
"""
    )
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        yield Project(gen, path)


def test_what_is_not_ready_is_named_with_its_state(project, capsys):
    gen = project.gen
    found = project.verify()
    assert {table.outcome for table in found.values()} == {"left_out"}
    assert found["orders"].error.code == "not_started"
    assert run(["-c", str(project.path), "verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "nothing_to_verify"
    gen.create([ORDERS, CUSTOMERS])
    gen.load({ORDERS.id: [[b"1", b"x"]], CUSTOMERS.id: []})
    gen.set_state(ORDERS.id, SNAPSHOTTING, ready_from=None)
    good = gen.position
    gen.set_state(
        CUSTOMERS.id, ERRORED, reason="column x went", remedy="put it back", last_good=good,
        ready_from=good,
    )  # fmt: skip
    found = project.verify()
    assert [table.outcome for table in found.values()] == ["left_out", "left_out"]
    assert "the table is Snapshotting" in found["orders"].error.message
    assert "column x went" in found["customers"].error.message
    assert "put it back" in found["customers"].error.remedy
    # Somebody who names a table wants it compared.
    named = project.verify("shop.public.orders")["orders"]
    assert (named.outcome, named.error.code) == ("refused", "table_not_ready")
    assert run(["-c", str(project.path), "verify", "shop.public.orders"]) == 1
    shown = capsys.readouterr()
    assert "shop.public.orders: refused: the table is Snapshotting" in shown.out
    assert "remedy: wait for the load" in shown.err


def test_tables_that_match_a_pattern(project):
    text = project.path.read_text()
    project.path.write_text(text.replace("[public.orders, public.customers]", '["public.*"]'))
    assert project.verify() == {}
    project.gen.create([ORDERS, CUSTOMERS])
    assert set(project.verify()) == {"orders", "customers"}
    assert project.verify("shop.public.orders")["orders"].error.code == "table_not_ready"
    with pytest.raises(ConfigError) as error:
        project.verify("shop.public.order")
    assert "shop.public.orders" in str(error.value.remedy)


def test_a_load_that_is_complete_only_later(project):
    gen = project.gen
    gen.create([ORDERS, CUSTOMERS])
    gen.load({ORDERS.id: [], CUSTOMERS.id: []})
    before = gen.lsn - 1
    gen.keepalive()

    @contextmanager
    def open_source(source):
        yield Snapshot(before)

    config = load_config(project.path)
    (orders,) = run_verify(config, ["shop.public.orders"], open_source, VerifyOptions()).tables
    assert orders.outcome == "refused" and orders.error is not None
    assert (orders.error.code, orders.error.remedy) == ("table_not_ready", "verify again")


def test_another_server_behind_the_same_address(project):
    project.gen.create([ORDERS, CUSTOMERS])
    project.gen.load({ORDERS.id: [], CUSTOMERS.id: []})
    found = project.verify(sysid="2")
    assert [table.error.code for table in found.values()] == ["another_server"] * 2
    assert [table.error.exit_code for table in found.values()] == [3, 3]


@pytest.fixture
def stopped(stack, database, topic_prefix, tmp_path):
    """A captured table whose capture does not run: a verify waits for the log."""
    capturing = Capturing(stack.bootstrap, database, topic_prefix, ["orders"])
    capturing.execute("create table orders (id int primary key)")
    with capturing.running():
        capturing.wait_ready()
        capturing.caught_up()
    capturing.execute("insert into orders values (1)")
    return Verifying(tmp_path, capturing)


SLOTS = (
    "select slot_name from pg_replication_slots where temporary and database = current_database()"
)
SESSIONS = (
    "select pid from pg_stat_activity where application_name = 'cdc' and pid <> pg_backend_pid()"
    " and datname = current_database()"
)


def test_a_verify_that_is_killed_leaves_nothing(stopped):
    capturing = stopped.capturing
    with killed_at_the_end(stopped):
        # With the snapshot taken over, the slot is gone already.
        capturing.wait_until(lambda: len(capturing.rows(SESSIONS)) == 2, 60, "the snapshot")
        capturing.wait_until(lambda: not capturing.rows(SLOTS), 20, "the slot's end")
    capturing.wait_until(lambda: not capturing.rows(SESSIONS), 20, "the sessions' end")


def test_a_verify_that_is_killed_before_it_has_a_snapshot(stopped):
    capturing = stopped.capturing
    with capturing.connect(autocommit=False) as other:
        other.execute("create table t (i int)")
        with killed_at_the_end(stopped):
            capturing.wait_until(lambda: capturing.rows(SLOTS), 60, "the slot")
        # The server sees it when the transactions that it waits for have ended.
        other.rollback()
    capturing.wait_until(lambda: not capturing.rows(SLOTS), 20, "the slot's end")
    capturing.wait_until(lambda: not capturing.rows(SESSIONS), 20, "the sessions' end")


@contextmanager
def killed_at_the_end(project):
    """A ``cdc verify`` of its own process, killed at the end of the block."""
    command = [sys.executable, "-m", "cdc.cli.main", "-c", str(project.path), "verify"]
    process = subprocess.Popen([*command, "--wait", "300"], stdout=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
