"""The key that cdc.yaml gives a table of identity FULL."""

import dataclasses

import orjson
import pytest

from cdc.names import TableId
from cdc.states import ERRORED, READY
from tests.loads.test_loads import asking, loads_of  # noqa: F401 - a fixture
from tests.support.capturing import Capturing, assert_log_is_source
from tests.support.gated import Gate

pytestmark = pytest.mark.timeout(120)

ORDERS = TableId("public", "orders")


@pytest.fixture
def source(stack, database, topic_prefix):
    gate = Gate()
    gate.open_to(10_000)
    source = Capturing(stack.bootstrap, database, topic_prefix, ["orders"], make_copier=gate)
    source.execute(
        "create table orders (id int primary key, shop int not null, code text not null, n int)",
        "create unique index orders_code on orders (code, shop)",
        "alter table orders replica identity full",
        "insert into orders select i, i % 2, 'c' || i / 2, 0 from generate_series(1, 20) i",
    )
    return source


def keyed(source, *key):
    """The source's settings, with this key for the table."""
    return dataclasses.replace(source.settings, keys={ORDERS: key} if key else {})


def write(source):
    source.execute(
        "update orders set n = n + 1 where id < 10",
        # The one key changes, the other stays.
        "update orders set id = id + 100 where id in (3, 4)",
        "update orders set code = code || '!' where id in (5, 6)",
        "delete from orders where id = 7",
        "insert into orders values (7, 1, 'new', 0) on conflict do nothing",
        "delete from orders where code = 'new'",
    )


def key_of(source):
    control = source.control()
    record = control.tables[ORDERS]
    schema = control.newest_schema(ORDERS, record.load)
    assert schema is not None
    # Of every record of the topic.
    assert {tuple(orjson.loads(found.key)) for found in source.records("orders")} == {schema.key}
    return schema.key


def test_the_key_of_cdc_yaml_and_what_changes_of_it_do(source, asking):  # noqa: F811
    with source.running(keyed(source, "shop", "code")):
        source.wait_ready()
        write(source)
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        assert key_of(source) == ("shop", "code")
        first = source.record("orders").topic
    # Another one while nobody captured: the topic of the old one is served until the load is done.
    with source.running(keyed(source)):
        source.wait_loaded("orders", 2)
        write(source)
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        assert key_of(source) == ("id",)
        assert source.record("orders").topic != first
        daemon = asking(source)
    # And one while it is captured.
    with source.running(keyed(source)):
        daemon.ask("no", "orders", verb="tables", keys=[["public", "orders", ["n"]]])
        error = daemon.answer(source, "no")["error"]
        assert (error["code"], error["table"]) == ("key_not_unique", "public.orders")
        assert 'ALTER "n" SET NOT NULL' in error["remedy"]
        daemon.ask("yes", "orders", verb="tables", keys=[["public", "orders", ["code", "shop"]]])
        assert daemon.answer(source, "yes")["state"] == "done"
        source.wait_loaded("orders", 3)
        write(source)
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        assert key_of(source) == ("code", "shop")
    # As it is by now: nothing is loaded.
    with source.running(keyed(source, "code", "shop")):
        write(source)
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        assert list(loads_of(source.control(), "orders")) == [1, 2, 3]


def test_a_key_changed_while_the_table_is_loaded(source):
    source.make_copier._limit = 0
    with source.running(keyed(source, "shop", "code")):
        source.wait_until(lambda: source.frontier() is not None, 20, "the first frontier")
        source.wait_until(lambda: source.control().unfinished_loads()[0].chunks, 20, "its plan")
        write(source)
    source.make_copier.open_to(10_000)
    with source.running(keyed(source, "code", "shop")):
        source.wait_loaded("orders", 2)
        write(source)
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        assert key_of(source) == ("code", "shop")


def test_a_key_that_is_lost_sets_the_table_aside(source, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    monkeypatch.setattr("connectors.postgres.reloads._RETRY_S", 0.5)
    with source.running(keyed(source, "shop", "code")):
        source.wait_ready()
        source.execute("drop index orders_code", "insert into orders values (900, 0, 'c1', 5)")
        source.wait_until(lambda: source.record("orders").state == ERRORED, 30, "it to be aside")
        source.wait_until(
            lambda: "CREATE UNIQUE INDEX" in str(source.record("orders").remedy), 30, "its remedy"
        )
        assert "key_" in str(source.record("orders").reason)
        source.execute(
            "delete from orders where id = 900",
            "create unique index on orders (shop, code)",
        )
        source.wait_until(lambda: source.record("orders").state == READY, 60, "it to be Ready")
        write(source)
        source.caught_up()
        assert_log_is_source(source, ["orders"])
