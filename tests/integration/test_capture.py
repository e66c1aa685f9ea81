"""Capture on a real Postgres and a real Kafka: what is in the log, and what stops a source."""

import dataclasses
import json

import psycopg
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from cdc.errors import ConfigError, HistoryGap, SourceError, SourceRefused, SourceStopped
from cdc.log.admin import LogAdmin
from cdc.log.topics import table_topic
from cdc.names import TableId
from cdc.states import ERRORED, READY
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


# --- what stops a source ---

#: Code of the stop, what happened before it in the same breath, and the change.
STOPS = {
    "column_dropped": ("alter table {t} drop n", "insert into {t} values (3, 'x')"),
    "column_renamed": ("alter table {t} rename name to title", "delete from {t} where id = 1"),
    "column_retyped": ("alter table {t} alter n type float8", "delete from {t} where id = 1"),
    "column_default": ("alter table {t} add d int default 7", "delete from {t} where id = 1"),
    "table_rewritten": (
        "alter table {t} add d uuid default gen_random_uuid()",
        "alter table {t} alter d drop default",
        "delete from {t} where id = 1",
    ),
    "identity_changed": ("alter table {t} replica identity full", "delete from {t} where id = 1"),
    "key_changed": (
        "alter table {t} drop constraint {t}_pkey, alter n set not null, add primary key (n)",
        "delete from {t} where id = 1",
    ),
    "table_renamed": ("alter table {t} rename to {t}_old", "delete from {t}_old where id = 1"),
}


def test_changes_that_cannot_be_followed_stop_the_source_before_their_transaction(
    stack, database, topic_prefix, monkeypatch
):
    # On a slow machine it would see a change before the stream does.
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 3600.0)
    sources = {}
    for code in STOPS:
        table = f"t_{code}"
        source = Capturing(
            stack.bootstrap, database, f"{topic_prefix}{code}.", [table], name=code[:20]
        )
        source.execute(TABLE.replace("orders", table))
        sources[code] = source
    for source in sources.values():
        source.start()
    for source in sources.values():
        source.wait_ready(60)
    for code, statements in STOPS.items():
        source, table = sources[code], f"t_{code}"
        source.execute(f"insert into {table} values (1, 'good', 1), (2, 'good', 2)")
        source.transaction(*(statement.format(t=table) for statement in statements))
    for code, source in sources.items():
        error = source.ends_with(60)
        table = f"t_{code}"
        assert (type(error), error.code) == (SourceStopped, code)
        assert error.table == f"shop.public.{table}"
        view, record = source.frontier(), source.control().tables[TableId("public", table)]
        assert record.state == ERRORED
        assert record.reason and record.remedy
        assert record.last_good == view.position
        assert error.position and error.message in record.reason
        assert error.position in record.reason
        assert "cdc destroy" in record.remedy
        # Readers that go by the frontier's control_end see it.
        seen = source.control(up_to=view.record.control_end)
        assert seen.tables[TableId("public", table)].state == ERRORED
        # Everything before is there, nothing of it is, nor is it confirmed.
        assert set(in_log(source, table)) == {1, 2}
        assert source.confirmed() <= view.record.end_lsn
        assert int(error.position.split("-")[1], 16) >= view.record.end_lsn
    # It stays so.
    again = sources["column_dropped"]
    again.start()
    error = again.ends_with()
    assert (type(error), error.code) == (SourceStopped, "source_errored")
    assert "was dropped" in error.message
    assert error.remedy and "cdc destroy" in error.remedy


def test_a_row_over_the_topics_limit_stops_the_source(orders):
    with orders.running():
        orders.wait_ready()
    topic = orders.control().tables[ORDERS].topic
    entry = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": orders.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(10)
    orders.start()
    orders.execute(
        "insert into orders values (1, 'good', 1)",
        "insert into orders select 2, repeat('long', 10000), 1",
    )
    error = orders.ends_with()
    assert (type(error), error.code) == (SourceStopped, "record_too_large")
    assert error.remedy and "max.message.bytes" in error.remedy
    assert set(in_log(orders)) == {1}
    assert orders.control().tables[ORDERS].state == ERRORED


def test_bytes_that_are_not_utf8_stop_the_source(stack, topic_prefix):
    name = f"ascii_{topic_prefix.strip('.')}"
    conninfo = stack.postgres.create_database(name, "encoding 'SQL_ASCII' template template0")
    try:
        source = Capturing(stack.bootstrap, conninfo, topic_prefix, ["orders"])
        source.execute(TABLE)
        source.start()
        source.wait_ready()
        source.execute(
            "insert into orders values (1, 'good', 1)",
            r"insert into orders values (2, E'secret\xff', 1)",
        )
        error = source.ends_with()
        assert (type(error), error.code) == (SourceStopped, "bad_value")
        assert "secret" not in str(error)
        assert set(in_log(source)) == {1}
        assert source.control().tables[ORDERS].state == ERRORED
    finally:
        stack.postgres.drop_database(name)


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

    # Taken out of the publication, and put in again: changes between are not in the stream.
    orders.execute(
        f"alter publication {publication} drop table orders",
    )
    refused(orders, HistoryGap, "publication_changed")
    orders.execute(f"alter publication {publication} add table orders")
    refused(orders, HistoryGap, "publication_changed")


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


def test_a_topic_that_was_made_again_is_named(orders):
    with orders.running():
        orders.wait_ready()
    topic = orders.control().tables[ORDERS].topic
    admin = LogAdmin(orders.bootstrap)
    admin.delete_topics([topic])
    refused(orders, HistoryGap, "topic_missing")
    admin.create_topics([table_topic(topic, partitions=2, replication_factor=1, history_ms=1000)])
    refused(orders, HistoryGap, "topic_changed")


def test_a_table_that_leaves_the_publication_stops_a_running_capture(orders, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.2)
    with orders.running():
        orders.wait_ready()
        orders.execute(f"alter publication {orders.settings.publication} drop table orders")
        error = orders.ends_with()
    assert (type(error), error.code) == (HistoryGap, "publication_changed")


def test_an_altered_publication_stops_a_running_capture(orders, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 1.5)
    name = orders.settings.publication
    with orders.running():
        orders.wait_ready()
        orders.execute(
            f"alter publication {name} set (publish = 'insert')",
            "insert into orders values (1, 'x', 1)",
            "delete from orders",
            f"alter publication {name} set (publish = 'insert, update, delete, truncate')",
        )
        error = orders.ends_with()
    assert (type(error), error.code) == (HistoryGap, "publication_changed")


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
