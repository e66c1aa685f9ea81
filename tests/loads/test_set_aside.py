"""A table that cannot be followed is set aside and loaded anew; its source goes on."""

import dataclasses
import json
import threading

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from cdc.log.admin import LogAdmin
from cdc.log.topics import table_topic
from cdc.states import ERRORED, READY, RELOADS, WAITS
from tests.support.capturing import SOURCE, Capturing, assert_log_is_source
from tests.support.gated import Gate

CREATE = "create table {t} (id int primary key, name text, n numeric(10,2) not null)"

#: What happens in one transaction, by the code of what is met.
CHANGES = {
    # The name that was dropped is another column's now.
    "column_replaced": (
        "alter table {t} drop n",
        "insert into {t} values (3, 'x')",
        "alter table {t} add n numeric(10,2)",
        "insert into {t} values (4, 'x', 4)",
    ),
    "column_renamed": ("alter table {t} rename name to title", "delete from {t} where id = 1"),
    "column_retyped": ("alter table {t} alter n type float8", "delete from {t} where id = 1"),
    "columns_swapped": (
        "alter table {t} rename name to other",
        "alter table {t} alter n type text",
        "alter table {t} rename n to name",
        "alter table {t} rename other to n",
        "delete from {t} where id = 1",
    ),
    "column_default": ("alter table {t} add d int default 7", "delete from {t} where id = 1"),
    "table_rewritten": (
        "alter table {t} add d float8 default random()",
        "alter table {t} alter d drop default",
        "delete from {t} where id = 1",
    ),
    "identity_changed": ("alter table {t} replica identity full", "delete from {t} where id = 1"),
    "key_changed": (
        "alter table {t} drop constraint {t}_pkey, add primary key (n)",
        "delete from {t} where id = 1",
    ),
    "table_recreated": (
        "drop table {t}",
        CREATE,
        "insert into {t} values (5, 'of the new table', 5)",
    ),
    "rows_before_it": (
        "insert into {t} values (3, 'of the same transaction', 3)",
        "alter table {t} rename name to title",
        "update {t} set n = n + 1",
    ),
}


@pytest.fixture
def capturing(stack, database, topic_prefix):
    """Makes a source whose tables are really copied."""

    def make(tables):
        gate = Gate()
        gate.open_to(10**6)
        source = Capturing(stack.bootstrap, database, topic_prefix, tables, make_copier=gate)
        for table in tables:
            source.execute(CREATE.format(t=table))
        return source

    return make


def test_changes_that_cannot_be_followed_set_one_table_aside_until_it_is_loaded(capturing):
    source = capturing([*CHANGES, "others"])
    with source.running():
        source.wait_ready(60)
        first = {table: source.record(table).topic for table in CHANGES}
        for table, statements in CHANGES.items():
            source.execute(f"insert into {table} values (1, 'good', 1), (2, 'good', 2)")
            source.transaction(
                *(statement.format(t=table) for statement in statements),
                f"insert into others select count(*) + 1, '{table}', 1 from others",
            )
        for table in CHANGES:
            source.wait_loaded(table, 2)
        source.execute("insert into others values (100, 'last', 1)")
        for table in CHANGES:
            source.execute(f"delete from {table} where ctid = (select min(ctid) from {table})")
        source.caught_up()
        assert_log_is_source(source, [*CHANGES, "others"])
        others = source.record("others")
        assert (others.state, others.load) == (READY, 1)
        for table in CHANGES:
            record = source.record(table)
            assert (record.last_good, record.reason, record.remedy, record.aside) == (None,) * 4
            assert record.topic != first[table]


def test_a_table_that_is_set_aside_stands_at_its_last_good_position(capturing):
    source = capturing(["orders", "others"])
    with source.running():
        source.wait_ready()
        source.execute("insert into orders values (1, 'good', 1)")
        good = source.caught_up().position
        topic = source.record("orders").topic
        # It cannot be loaded under its old name.
        source.transaction(
            "alter table orders rename to moved",
            "insert into moved values (2, 'not seen', 2)",
            "insert into others values (1, 'goes on', 1)",
        )
        source.caught_up()
        source.wait_until(lambda: source.record("orders").state == ERRORED, 20, "the state")
        record = source.record("orders")
        assert (record.aside, record.topic, record.load) == (RELOADS, topic, 1)
        assert record.last_good is not None and record.last_good >= good
        below = source.records("orders", record.last_good)
        assert [json.loads(r.key)["id"] for r in below] == [1]
        assert record.reason and record.remedy
    # It stays so over a restart, and the rest goes on.
    with source.running():
        source.execute("insert into others values (2, 'and on', 1)")
        source.caught_up()
        assert_log_is_source(source, ["others"])
        assert source.record("orders").state == ERRORED
        # Another try to load it may come after the stream has caught up.
        source.wait_until(
            lambda: "does not exist" in source.record("orders").reason, 20, "a new try"
        )


def test_a_table_that_can_be_captured_again_is_loaded_by_itself(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.reloads._RETRY_S", 0.2)
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.2)
    source = capturing(["orders", "others"])
    with source.running():
        source.wait_ready()
        source.execute("drop table orders", "insert into others values (1, 'goes on', 1)")
        source.wait_until(lambda: source.record("orders").state == ERRORED, 20, "the state")
        source.execute(CREATE.format(t="orders"), "insert into orders values (7, 'new', 7)")
        source.wait_loaded("orders", 2)
        source.execute("insert into orders values (8, 'streamed', 8)")
        source.caught_up()
        assert_log_is_source(source, ["orders", "others"])


def test_a_table_that_is_truncated_all_the_time_is_loaded_once_it_rests(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.reloads._RETRY_S", 1.0)
    source = capturing(["orders", "others"])
    more = "insert into orders select i, repeat('x', 100), i from generate_series(1, 500) i"
    stop = threading.Event()

    def truncate():
        while not stop.is_set():
            source.execute("truncate orders", more)

    writer = threading.Thread(target=truncate)
    with source.running():
        writer.start()
        try:
            source.wait_until(lambda: source.frontier() is not None, 20, "the start")
            source.wait_until(
                lambda: source.record("orders").state == ERRORED, 60, "loads given up"
            )
            record = source.record("orders")
            assert "code load_not_possible" in record.reason and record.aside == RELOADS
            source.execute("insert into others values (1, 'goes on', 1)")
            source.caught_up()
            assert_log_is_source(source, ["others"])
        finally:
            stop.set()
            writer.join()
        source.wait_until(lambda: source.record("orders").state == READY, 60, "the table")
        source.caught_up()
        assert_log_is_source(source, ["orders", "others"])


#: Changes that no event of the table tells of.
SILENT = {
    "values_altered": ("alter table {t} alter n type numeric(10,2) using n * 2",),
    "added_with_default": ("alter table {t} add d int not null default 7",),
    "renamed": ("alter table {t} rename name to title",),
    "retyped": ("alter table {t} alter n type text",),
    # Of equal name and type, at the same place: only the catalog's number tells.
    "replaced": ("alter table {t} drop n, add n numeric(10,2) not null default 0",),
    "rewritten": (
        "alter table {t} add d float8 default random()",
        "alter table {t} alter d drop default",
    ),
    "enum_renamed": ("alter type mood rename value 'sad' to 'blue'",),
    "composite_changed": ("alter type pair add attribute c int",),
    "swapped": (
        "alter table {t} rename to {t}_old",
        CREATE,
        "alter table {t} replica identity full",
        "insert into {t} values (9, 'of the new table', 9)",
    ),
}


def test_changes_that_no_event_tells_of_are_found_in_the_catalog(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source = capturing([*SILENT, "others"])
    source.execute(
        "create type mood as enum ('sad', 'happy')",
        "create domain moods as mood[]",
        "alter table enum_renamed add m moods default '{sad,happy}'",
        "create type pair as (a int, b text)",
        "alter table composite_changed add p pair[] default '{\"(1,x)\"}'",
    )
    with source.running():
        source.wait_ready(60)
        for table in SILENT:
            source.execute(f"insert into {table} values (1, 'before', 1), (2, 'before', 2)")
        # A new label changes nothing of the rows.
        source.execute("alter type mood add value 'calm'")
        source.caught_up()
        for table, statements in SILENT.items():
            source.transaction(*(statement.format(t=table) for statement in statements))
        source.execute("insert into others values (1, 'goes on', 1)")
        for table in SILENT:
            source.wait_loaded(table, 2)
        source.execute(*(f"delete from {table} where id in (1, 9)" for table in SILENT))
        source.caught_up()
        assert_log_is_source(source, [*SILENT, "others"])
        assert source.record("others").load == 1


def test_a_column_that_is_another_one_by_the_time_it_is_captured_is_not_taken_for_the_first(
    capturing, monkeypatch
):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source = capturing(["orders", "gaps"])
    source.execute("alter table gaps drop n")
    with source.running():
        source.wait_ready()
        source.execute(
            "insert into orders values (1, 'x', 1), (2, 'y', 2)", "insert into gaps values (1, 'x')"
        )
        source.caught_up()
        source.wait_until(lambda: source.record("gaps").types, 20, "a look")
    source.execute("alter table orders add c int", "update orders set c = 5 where id = 1")
    source.execute("alter table orders drop c, add c int", "update orders set n = 3 where id = 2")
    # A column that was gone before the load tells nothing.
    source.execute("alter table gaps add n int", "update gaps set n = 7")
    with source.running():
        source.caught_up()
        source.wait_loaded("orders", 2)
        source.caught_up()
        assert_log_is_source(source, ["orders", "gaps"])
        assert source.record("gaps").load == 1


def test_an_added_column_without_values_needs_no_load(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.1)
    source = capturing(["orders"])
    with source.running():
        source.wait_ready()
        source.execute("insert into orders values (1, 'x', 1)", "alter table orders add more int")
        looks = source.wal_end()
        source.execute("select pg_sleep(1)")
        assert source.caught_up().record.end_lsn >= looks
        source.execute("update orders set more = 5")
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        assert source.record("orders").load == 1


def out_and_in(source):
    """SQL: ``orders`` leaves the publication, and comes back with a row that nobody was told of."""
    publication = source.settings.publication
    return (
        f"alter publication {publication} drop table orders",
        "insert into orders values (1, 'nobody was told', 1)",
        f"alter publication {publication} add table orders",
    )


def test_a_table_that_left_the_publication_for_a_while_is_loaded_anew(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.2)
    source = capturing(["orders", "others"])
    with source.running():
        source.wait_ready()
        source.execute(
            *out_and_in(source),
            "insert into orders values (2, 'published', 2)",
        )
        source.wait_loaded("orders", 2)
        source.caught_up()
        assert_log_is_source(source, ["orders", "others"])


def test_a_table_that_left_the_publication_while_nobody_captured_is_loaded_anew(capturing):
    source = capturing(["orders", "others"])
    with source.running():
        source.wait_ready()
    source.execute(*out_and_in(source))
    with source.running():
        source.execute("insert into others values (1, 'goes on', 1)")
        source.wait_loaded("orders", 2)
        source.caught_up()
        assert_log_is_source(source, ["orders", "others"])
    source.execute(f"alter publication {source.settings.publication} drop table orders")
    with source.running():
        # Nobody but us keeps the publication, so it gets its place back.
        source.wait_loaded("orders", 3)
        source.execute("insert into orders values (2, 'told', 1)")
        source.caught_up()
        assert_log_is_source(source, ["orders"])


def test_tables_whose_topics_are_not_those_that_were_written_are_loaded_anew(capturing):
    tables = ["gone", "made_again", "others"]
    source = capturing(tables)

    def insert(n):
        source.execute(*(f"insert into {table} values ({n}, 'row', {n})" for table in tables))

    insert(1)
    with source.running():
        source.wait_ready()
        insert(2)
        source.caught_up()
    topics = [source.record(table).topic for table in tables[:2]]
    admin = LogAdmin(source.bootstrap)
    admin.delete_topics(topics)
    admin.create_topics(
        [table_topic(topics[1], partitions=1, replication_factor=1, history_ms=1000)]
    )
    insert(3)
    with source.running():
        source.wait_loaded("gone", 2)
        source.wait_loaded("made_again", 2)
        insert(4)
        source.caught_up()
        assert_log_is_source(source, tables)
    # The next start has nothing to complain of.
    with source.running():
        source.wait_ready()
        insert(5)
        source.caught_up()
        assert_log_is_source(source, tables)
    assert [source.record(table).load for table in tables] == [2, 2, 1]


def test_a_table_that_is_locked_for_long_does_not_hold_up_the_others(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.reread._LONGEST_LOCKED_S", 1.0)
    source = capturing(["docs", "others"])
    source.execute("alter table docs alter name set storage external")
    with source.running():
        source.wait_ready()
        source.execute("insert into docs values (1, repeat('long', 2000), 1)")
        source.caught_up()
    # The long value is not sent, and has to be read.
    source.execute("update docs set n = 2")
    with source.connect(autocommit=False) as holder:
        holder.execute("lock table docs in access exclusive mode")
        with source.running():
            source.wait_until(lambda: source.record("docs").state == ERRORED, 30, "the state")
            assert "table_locked" in source.record("docs").reason
            source.execute("insert into others values (1, 'goes on', 1)")
            source.caught_up()
            assert_log_is_source(source, ["others"])
            holder.rollback()
            source.wait_loaded("docs", 2)
            source.caught_up()
            assert_log_is_source(source, ["docs", "others"])


def test_a_gap_in_the_publication_ends_the_load_whose_spool_has_it(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.2)
    source = capturing(["orders"])
    gate, publication = source.make_copier, source.settings.publication
    gate._limit = 2
    source.execute(
        "insert into orders select i, repeat('wide', 200), 0 from generate_series(1, 60) i"
    )
    with source.running():
        source.wait_until(lambda: len(gate.copied) == 2, 20, "two chunks")
        source.execute(
            f"alter publication {publication} drop table orders",
            "update orders set n = 1 where id = 1",
            f"alter publication {publication} add table orders",
        )
        source.wait_until(lambda: len(source.control().loads) == 2, 20, "the next load")
        gate.open_to(10**6)
        source.wait_ready()
        assert_log_is_source(source, ["orders"])


def limit_records(source, topic, size):
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(10)


def test_a_row_that_no_load_can_take_waits_for_somebody(capturing):
    source = capturing(["orders", "others"])
    with source.running():
        source.wait_ready()
    limit_records(source, source.record("orders").topic, 20_000)
    with source.running():
        source.execute(
            "insert into orders values (1, 'good', 1)",
            "insert into others values (1, 'good', 1)",
            "insert into orders select 2, repeat('long', 10000), 1",
            "insert into others values (2, 'goes on', 1)",
        )
        source.wait_until(lambda: source.record("orders").state == ERRORED, 20, "the state")
        source.caught_up()
        record = source.record("orders")
        assert record.aside == WAITS
        assert "record_too_large" in record.reason and "long" not in record.reason
        assert "max.message.bytes" in record.remedy
        assert f"cdc snapshot {SOURCE}.public.orders" in record.remedy
        assert_log_is_source(source, ["others"])
        assert not source.control().unfinished_loads()


def test_a_row_that_its_spool_cannot_take_ends_the_load(capturing):
    source = capturing(["orders", "others"])
    gate = source.make_copier
    gate._limit = 0
    with source.running():
        source.wait_until(lambda: source.frontier() is not None, 20, "the first frontier")
        source.wait_until(
            lambda: any(load.chunks for load in source.control().unfinished_loads()), 20, "it"
        )
    # The smallest limit of those topics that capture writes counts for all.
    limit_records(source, source.settings.control_topic, 20_000)
    with source.running():
        source.execute(
            "insert into orders select 2, repeat('large', 10000), 1",
            "insert into others values (2, 'goes on', 1)",
        )
        source.wait_until(lambda: source.record("orders").state == ERRORED, 20, "the state")
        gate.open_to(10**6)
        source.wait_loaded("others", 1)
        source.caught_up()
        record = source.record("orders")
        assert (record.aside, record.last_good, record.ready_from) == (WAITS, None, None)
        assert_log_is_source(source, ["others"])
        assert not source.control().unfinished_loads()


def test_a_load_begins_once_the_stream_has_passed_the_form_that_the_catalog_shows(
    capturing, monkeypatch
):
    source = capturing(["orders", "others"])
    with source.running():
        source.wait_ready()
        source.execute("insert into orders values (1, 'good', 1)")
        source.caught_up()
    # All of it waits in the WAL: the catalog is far ahead of the stream.
    source.execute("alter table orders drop name", "insert into orders values (2, 2)")
    for n in range(8):
        source.execute(
            f"alter table orders add c{n} int default {n}",
            f"insert into orders (id, n) values ({10 + n}, 1)",
            f"insert into others values ({n}, 'x', 1)",
        )
    with source.running():
        source.wait_loaded("orders", 2)
        source.caught_up()
        assert_log_is_source(source, ["orders", "others"])
        assert source.record("orders").load == 2


def test_bytes_that_are_not_utf8_set_the_table_aside(stack, topic_prefix):
    name = f"ascii_{topic_prefix.strip('.')}"
    conninfo = stack.postgres.create_database(name, "encoding 'SQL_ASCII' template template0")
    try:
        conninfo = {**conninfo, "client_encoding": "UTF8"}
        source = Capturing(stack.bootstrap, conninfo, topic_prefix, ["orders", "others"])
        source.execute(*(CREATE.format(t=table) for table in ("orders", "others")))
        with source.running():
            source.wait_ready()
            source.execute(
                "insert into orders values (1, 'good', 1)",
                r"insert into orders values (2, E'secret\xff', 1)",
                "insert into others values (2, 'goes on', 1)",
            )
            source.wait_until(lambda: source.record("orders").state == ERRORED, 20, "it")
            source.caught_up()
            record = source.record("orders")
            assert record.aside == WAITS
            assert "secret" not in record.reason
            below = source.records("orders", record.last_good)
            assert [json.loads(r.key)["id"] for r in below] == [1]
            assert_log_is_source(source, ["others"])
    finally:
        stack.postgres.drop_database(name)


def test_a_transaction_in_parts_that_changes_a_tables_form(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.stream._PART_RECORDS", 500)
    monkeypatch.setattr("connectors.postgres.stream._CHECK_EVERY_RECORDS", 100)
    source = capturing(["orders", "others"])
    with source.running(dataclasses.replace(source.settings, workers=1)):
        source.wait_ready()
        source.transaction(
            "insert into orders select i, 'x', 0 from generate_series(1, 2000) i",
            "insert into others select i, 'x', 0 from generate_series(1, 2000) i",
            "alter table orders alter name type varchar",
            "insert into orders select i, 'x', 0 from generate_series(2001, 4000) i",
            "insert into others select i, 'y', 0 from generate_series(2001, 4000) i",
        )
        source.wait_loaded("orders", 2)
        source.caught_up()
        assert_log_is_source(source, ["orders", "others"])
