"""A publication that somebody else keeps: what it does not send keeps back one table at a time."""

import contextlib
import dataclasses

import pytest

from cdc.names import TableId
from cdc.states import ERRORED, READY
from cdc.table_names import TablePattern
from connectors.postgres import reloads, source_watch
from tests.support.capturing import Capturing, assert_log_is_source
from tests.support.gated import Gate

PARTITIONED = (
    "create table parts (id int, m int, v text, primary key (id, m)) partition by list (m)",
    "create table parts_1 partition of parts for values in (1)",
    "create table parts_2 partition of parts for values in (2) partition by list (m)",
    "create table parts_2a partition of parts_2 for values in (2)",
    "insert into parts values (1, 1, 'a'), (2, 2, 'b')",
    "create table plain (id int primary key, v text)",
    "insert into plain values (1, 'a')",
)
EVERYTHING = "insert, update, delete, truncate"


@pytest.fixture
def theirs(stack, database, topic_prefix, monkeypatch):
    """Makes a source of these tables and patterns, and its publication."""
    monkeypatch.setattr(source_watch, "_EVERY_S", 0.3)
    monkeypatch.setattr(reloads, "_RETRY_S", 0.3)

    def make(tables, publication, *patterns):
        gate = Gate()
        gate.open_to(10**6)
        source = Capturing(stack.bootstrap, database, topic_prefix, tables, make_copier=gate)
        source.settings = dataclasses.replace(
            source.settings,
            manage_publication=False,
            patterns=tuple(map(TablePattern.parse, patterns)),
        )
        source.execute(*PARTITIONED, f"create publication {name_of(source)} {publication}")
        return source

    return make


def name_of(source):
    return f'"{source.settings.publication}"'


def alter(source, options):
    source.execute(f"alter publication {name_of(source)} set ({options})")


def wait_for(source, **states):
    def reached():
        tables = source.control().tables
        return all(
            (record := tables.get(TableId("public", table))) is not None and record.state == state
            for table, state in states.items()
        )

    source.wait_until(reached, 60, str(states))


@contextlib.contextmanager
def running(source, **states):
    with source.running():
        source.wait_until(lambda: source.frontier() is not None, 20, "the first frontier")
        wait_for(source, **states)
        yield


def assert_caught_up(source, *tables):
    source.caught_up()
    assert_log_is_source(source, tables)


@pytest.mark.parametrize(
    "publication", ["for all tables", "for table parts", "for table parts_1, parts_2a"]
)
def test_partitions_that_are_published_by_themselves(theirs, publication):
    source = theirs(["parts_1", "parts_2a"], publication)
    with running(source, parts_1=READY, parts_2a=READY):
        source.execute(
            "insert into parts values (3, 1, 'c'), (4, 2, 'd')",
            "update parts set m = 3 - m where id in (1, 2)",
            "update parts set v = v || '!'",
            "delete from parts where id = 4",
        )
        assert_caught_up(source, "parts_1", "parts_2a")
        source.execute("truncate parts", "insert into parts values (5, 1, 'e'), (6, 2, 'f')")
        assert_caught_up(source, "parts_1", "parts_2a")
        assert len(source.state("parts_1")) == len(source.state("parts_2a")) == 1
        if publication == "for table parts":
            # It is published no more, and comes back with what was written meanwhile.
            source.execute("alter table parts detach partition parts_1")
            wait_for(source, parts_1=ERRORED)
            source.execute(
                "insert into parts_1 values (7, 1, 'g')",
                "alter table parts attach partition parts_1 for values in (1)",
            )
            wait_for(source, parts_1=READY)
        else:
            source.execute("alter table parts detach partition parts_1")
        source.execute("insert into parts_1 values (8, 1, 'h')")
        assert_caught_up(source, "parts_1", "parts_2a")
        assert source.record("parts_2a").load == 1


def test_a_partition_that_comes_under_its_tables_name_is_set_aside(theirs):
    source = theirs(["parts_1", "plain"], "for all tables")
    with running(source, parts_1=READY, plain=READY):
        alter(source, "publish_via_partition_root = true")
        wait_for(source, parts_1=ERRORED)
        source.wait_until(
            lambda: "is a partition of public.parts" in source.record("parts_1").reason, 20, "why"
        )
        source.execute("insert into parts values (3, 1, 'c')")
        alter(source, "publish_via_partition_root = false")
        wait_for(source, parts_1=READY, plain=READY)
        source.execute("update parts set v = 'x'", "update plain set v = 'x'")
        assert_caught_up(source, "parts_1", "plain")


def test_a_partitioned_table_that_is_published_by_partitions_is_set_aside(theirs):
    source = theirs(["parts", "plain"], "for all tables")
    with running(source, parts=ERRORED, plain=READY):
        record = source.record("parts")
        assert "does not publish public.parts under its own name" in record.reason
        assert "publish_via_partition_root = true" in record.remedy
        source.execute("insert into parts values (3, 1, 'c')", "update plain set v = 'b'")
        assert_caught_up(source, "plain")
        alter(source, "publish_via_partition_root = true")
        wait_for(source, parts=READY, plain=READY)
        source.execute("update parts set v = v || '!'")
        assert_caught_up(source, "parts", "plain")
        alter(source, "publish_via_partition_root = false")
        wait_for(source, parts=ERRORED, plain=READY)


def test_patterns_mean_the_partitions_that_are_published_by_themselves(theirs):
    source = theirs([], "for all tables", "public.p*")
    with running(source, parts=ERRORED, parts_1=READY, parts_2a=READY, plain=READY):
        assert TableId("public", "parts_2") not in source.control().tables
        source.execute("update parts set v = 'x'")
        assert_caught_up(source, "parts_1", "parts_2a")


def test_operations_that_are_not_published_set_tables_aside(theirs):
    source = theirs(["plain"], "for table plain with (publish = 'insert, delete')")
    with running(source, plain=ERRORED):
        record = source.record("plain")
        assert "does not publish truncate, update of public.plain" in record.reason
        assert f"SET (publish = '{EVERYTHING}')" in record.remedy
        source.execute("insert into plain values (2, 'b')", "update plain set v = 'c'")
        alter(source, f"publish = '{EVERYTHING}'")
        wait_for(source, plain=READY)
        source.execute("update plain set v = v || '!'")
        assert_caught_up(source, "plain")
        alter(source, "publish = 'insert'")
        wait_for(source, plain=ERRORED)
        source.execute("update plain set v = 'not told'")
        alter(source, f"publish = '{EVERYTHING}'")
        wait_for(source, plain=READY)
        assert_caught_up(source, "plain")
    alter(source, "publish = 'update'")
    source.execute("delete from plain where id = 2")
    with running(source, plain=ERRORED):
        alter(source, f"publish = '{EVERYTHING}'")
        wait_for(source, plain=READY)
        assert_caught_up(source, "plain")
