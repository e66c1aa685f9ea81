"""Capture on a real Postgres and a real Kafka: what is in the log, and what stops a source."""

import dataclasses
import json

import psycopg
import pytest

from cdc.errors import ConfigError, HistoryGap, SourceError, SourceRefused
from cdc.log.admin import LogAdmin
from cdc.names import TableId
from cdc.states import READY
from connectors.postgres import stream as stream_module
from connectors.postgres.client import ReplicationClient
from tests.support.capturing import Capturing

ORDERS = TableId("public", "orders")
TABLE = "create table orders (id int primary key, name text, n numeric(10,2))"


@pytest.fixture
def orders(stack, database, topic_prefix):
    """A source with one empty table."""
    source = Capturing(stack.bootstrap, database, topic_prefix, ["orders"], partitions=2)
    source.execute(TABLE)
    return source


def in_source(source):
    return {id: (name, n) for id, name, n in source.rows("select id, name, n::text from orders")}


def in_log(source, table="orders"):
    return {json.loads(key)["id"]: row for key, row in source.state(table).items()}


def same(source):
    """The log, folded, is the source."""
    return {id: (row["name"], row["n"]) for id, row in in_log(source).items()} == in_source(source)


def test_the_log_follows_the_source_over_every_kind_of_change(orders):
    with orders.running():
        orders.wait_ready()
        orders.execute(
            "insert into orders select i, 'name ' || i, i from generate_series(1, 20) i",
            "update orders set n = n + 0.5 where id <= 10",
            "update orders set id = 100 + id where id in (3, 4)",
            "delete from orders where id in (5, 6)",
        )
        # A key that moves away and is taken by another row, in one transaction.
        orders.transaction(
            "update orders set id = 200 where id = 7", "insert into orders values (7, 'new', 1)"
        )
        with orders.connect(autocommit=False) as connection:
            connection.execute("insert into orders values (300, 'rolled back', 0)")
            connection.rollback()
        orders.caught_up()
        assert same(orders)
        # Truncate, and rows after it in the same transaction.
        orders.transaction("truncate orders", "insert into orders values (1, 'after', 2)")
        orders.caught_up()
        orders.wait_until(orders.knows_files, 10, "the new file to be known")
        assert same(orders)
        orders.transaction(
            "insert into orders values (2, 'old columns', 2)",
            "alter table orders add note text",
            "insert into orders values (3, 'new columns', 2, 'noted')",
        )
        orders.caught_up()
        found = in_log(orders)
        assert found[3]["note"] == "noted"
        assert "note" not in found[2]
    # Across a restart, and nothing twice.
    orders.execute("insert into orders values (4, 'while down', 1, 'x')")
    with orders.running():
        orders.caught_up()
        orders.execute("update orders set note = 'y' where id = 2")
        orders.caught_up()
    found = in_log(orders)
    assert [found[id].get("note") for id in (1, 2, 3, 4)] == [None, "y", "noted", "x"]
    records = [r for r in orders.records("orders") if r.op != "tombstone"]
    changes = [(r.position, r.key, r.op) for r in records]
    assert len(changes) == len(set(changes))
    schemas = orders.control().schemas[ORDERS, 1]
    assert sorted(schemas) == [1, 2]
    assert schemas[2].valid_from == next(
        r.position for r in records if r.key == b'{"id":3}' and r.schema_version == 2
    )
    assert orders.confirmed() <= orders.frontier().record.end_lsn


def test_a_commit_record_that_starts_exactly_at_the_frontier_is_captured(orders):
    orders.execute("create table elsewhere (id int)")
    with orders.running():
        orders.wait_ready()
    for attempt in range(1, 6):
        with orders.connect(autocommit=False) as connection:
            connection.execute(f"insert into orders values ({attempt}, 'x', 0)")
            with orders.running():
                # Its commit flushes the WAL, to whose end the frontier then moves.
                orders.execute("insert into elsewhere values (1)")
                orders.caught_up()
            connection.commit()
        before = orders.frontier().position
        with orders.running():
            orders.caught_up()
        assert set(in_log(orders)) == set(range(1, attempt + 1))
        if any(f.last and f.last.lsn == before.lsn for f in orders.frontiers()):
            return
    pytest.fail("no commit record came to lie at a frontier")


def test_a_quiet_source_never_holds_wal(orders):
    with orders.running():
        orders.wait_ready()
        orders.execute("create table elsewhere (id int)")
        confirmed = orders.confirmed()
        orders.execute("insert into elsewhere select generate_series(1, 1000)")
        target = orders.wal_end()
        orders.wait_until(lambda: orders.confirmed() >= target, 20, "the slot to move")
        assert orders.confirmed() > confirmed
        assert orders.frontier().record.last is None
        assert orders.frontier().record.end_lsn >= orders.confirmed()


def test_a_transaction_larger_than_a_part_moves_the_frontier_once(orders, monkeypatch):
    monkeypatch.setattr(stream_module, "_PART_RECORDS", 500)
    monkeypatch.setattr(stream_module, "_CHECK_EVERY_RECORDS", 100)
    with orders.running():
        orders.wait_ready()
        before = len(orders.frontiers())
        orders.transaction(
            "insert into orders select i, 'x', 0 from generate_series(1, 3000) i",
            "update orders set n = 1",
        )
        orders.caught_up()
        with_rows = [f for f in orders.frontiers()[before:] if f.last is not None]
    assert len(with_rows) == 1
    assert len({r.position.lsn for r in orders.records("orders")}) == 1
    ordinals = [r.position.ordinal for r in orders.records("orders")]
    assert sorted(ordinals) == list(range(1, 6001))
    assert all(row["n"] == "1.00" for row in in_log(orders).values())


# --- start checks ---


def refused(source, kind, code, settings=None):
    source.start(settings)
    error = source.ends_with()
    assert (type(error), error.code) == (kind, code), error
    assert error.remedy
    return error


def test_a_foreign_slot_of_our_name_is_never_dropped(orders):
    slot = orders.settings.slot
    orders.execute(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    refused(orders, SourceRefused, "slot_exists")
    assert orders.confirmed() is not None
    # Nothing was created.
    assert orders.rows("select * from pg_publication") == []
    admin = LogAdmin(orders.bootstrap)
    assert not admin.exists(orders.settings.control_topic)


def test_what_breaks_history_is_named_at_the_next_start(orders, monkeypatch):
    monkeypatch.setattr("connectors.postgres.leftovers._SLOT_FREE_WITHIN_S", 0.5)
    with orders.running():
        orders.wait_ready()
        orders.execute("insert into orders values (1, 'x', 1)")
        orders.caught_up()
    slot, publication = orders.settings.slot, orders.settings.publication

    more = dataclasses.replace(
        orders.settings, tables=(*orders.settings.tables, TableId("public", "more"))
    )
    error = refused(orders, SourceRefused, "table_missing", more)
    assert "public.more" in error.message
    other = dataclasses.replace(orders.settings, slot="other")
    refused(orders, ConfigError, "slot_changed", other)

    with ReplicationClient(orders.conninfo) as client:
        client.start_replication(slot, 0, publication)
        error = refused(orders, SourceError, "slot_active")
        assert "pg_terminate_backend" in error.remedy


def test_a_slot_that_was_moved_on_or_dropped_is_named(orders):
    with orders.running():
        orders.wait_ready()
    orders.execute("insert into orders values (1, 'x', 1)")
    slot = orders.settings.slot
    orders.execute(f"select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    refused(orders, HistoryGap, "slot_ahead")
    orders.execute(f"select pg_drop_replication_slot('{slot}')")
    refused(orders, HistoryGap, "slot_missing")
    orders.execute(f"select pg_create_logical_replication_slot('{slot}', 'test_decoding')")
    refused(orders, SourceRefused, "slot_foreign")


def test_topics_of_which_none_is_as_it_was_written_stop_the_source(stack, database, topic_prefix):
    source = Capturing(stack.bootstrap, database, topic_prefix, ["orders", "others"])
    source.execute(TABLE, TABLE.replace("orders", "others"))
    with source.running():
        source.wait_ready()
    LogAdmin(source.bootstrap).delete_topics(
        [record.topic for record in source.control().tables.values()]
    )
    refused(source, HistoryGap, "topic_missing")


def test_a_truncate_or_rewrite_alone_does_not_stop_a_later_added_column(orders, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.1)
    with orders.running():
        orders.wait_ready()
        orders.execute("truncate orders", "vacuum full orders")
        orders.wait_until(orders.knows_files, 20, "the new file to be known")
        orders.execute("alter table orders add note text", "insert into orders values (1, 'x', 1)")
        orders.caught_up()
        assert orders.control().tables[ORDERS].state == READY
    assert in_log(orders)[1]["note"] is None


def test_an_application_is_never_blocked_by_a_stop(orders):
    """A stop while a transaction is open in the source ends at once."""
    with orders.running():
        orders.wait_ready()
        with psycopg.connect(**orders.conninfo) as connection:
            connection.execute("insert into orders values (1, 'x', 1)")
            orders.stop()
            connection.commit()
    with orders.running():
        orders.caught_up()
    assert set(in_log(orders)) == {1}
