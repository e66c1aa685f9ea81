"""Patterns in ``tables``: which tables are captured, set aside, picked up later, and dropped."""

import contextlib
import dataclasses

import psycopg
import pytest

from cdc.log.admin import LogAdmin
from cdc.log.topics import table_topic
from cdc.names import TableId
from cdc.states import DONE, ERRORED, READY, REMOVED
from cdc.table_names import TablePattern
from connectors.postgres import reloads, source_watch
from tests.loads.test_loads import (
    CREATE,
    asking,  # noqa: F401 - a fixture
    loads_of,
    wait_state,
)
from tests.support.capturing import SOURCE, Capturing, assert_log_is_source
from tests.support.gated import Gate

pytestmark = pytest.mark.timeout(180)

#: Tables that no pattern may capture, and why.
REFUSED = {
    "no_key": ("create table no_key (id int)", "no_key"),
    "unlogged": ("create unlogged table unlogged (id int primary key)", "unlogged"),
    "view": ("create view view as select 1 as id", "view"),
    "materialized": ("create materialized view materialized as select 1 as id", "materialized"),
    "nothing": (
        "create table nothing (id int primary key); alter table nothing replica identity nothing",
        "identity_nothing",
    ),
}


@pytest.fixture
def quick(monkeypatch):
    """Capture looks at the source more often."""
    monkeypatch.setattr(source_watch, "_EVERY_S", 0.5)
    monkeypatch.setattr(reloads, "_RETRY_S", 0.5)


@pytest.fixture
def patterned(stack, database, topic_prefix):
    """A source of tables that match patterns, not yet started."""

    def make(*patterns, names=(), **changes):
        gate = Gate()
        gate.open_to(10_000)
        source = Capturing(stack.bootstrap, database, topic_prefix, names, make_copier=gate)
        parsed = tuple(map(TablePattern.parse, patterns))
        source.settings = dataclasses.replace(source.settings, patterns=parsed, **changes)
        return source, gate

    return make


@contextlib.contextmanager
def running(source):
    with source.running():
        source.wait_until(lambda: source.frontier() is not None, 20, "the first frontier")
        yield


def create(source, *tables):
    for table in tables:
        source.execute(*(statement.format(t=table) for statement in CREATE))


def change(source, *tables):
    for table in tables:
        source.execute(
            f"update {table} set n = n + 1 where id in (1, 39)", f"delete from {table} where id = 2"
        )


def state_of(source, table, schema="public"):
    record = source.control().tables.get(TableId(schema, table))
    return record and record.state


def wait_aside(source, table, code):
    def aside():
        record = source.control().tables.get(TableId("public", table))
        return record is not None and record.state == ERRORED and f"code {code}" in record.reason

    source.wait_until(aside, 30, f"{table} to be set aside: {code}")


def published(source):
    return {name for (name,) in source.rows("select tablename::text from pg_publication_tables")}


def test_what_a_pattern_finds_at_the_first_start(patterned, quick):
    source, _ = patterned("public.*", 'o?her."t*.*"')
    create(source, "a", "b")
    source.execute(
        "create schema other",
        'create table other."t*.*" (id int primary key)',
        'create table other."t.x" (id int primary key)',
        "create temporary table public_temp (id int primary key)",
        *(statement for statement, _ in REFUSED.values()),
    )
    with running(source):
        wait_state(source, "a", READY)
        wait_state(source, "b", READY)
        tables = source.control().tables
        assert {id for id in tables if tables[id].state != ERRORED} == {
            TableId("public", "a"),
            TableId("public", "b"),
            TableId("other", "t*.*"),
        }
        for table, (_, code) in REFUSED.items():
            record = tables[TableId("public", table)]
            assert (record.state, record.load, record.topic) == (ERRORED, 0, ""), table
            assert code in record.reason and record.remedy, table
        assert published(source) == {"a", "b", "t*.*"}
        change(source, "a", "b")
        source.caught_up()
        assert_log_is_source(source, ["a", "b"])
        # What is mended goes on by itself, the others stay as they are.
        source.execute("alter table no_key add n int, add primary key (id)")
        source.execute("insert into no_key values (1), (2)")
        wait_state(source, "no_key", READY)
        source.execute("alter table unlogged set logged")
        wait_state(source, "unlogged", READY)
        source.execute("insert into no_key values (3)", "insert into unlogged values (1)")
        change(source, "a")
        source.caught_up()
        assert_log_is_source(source, ["a", "b", "no_key", "unlogged"])
        assert state_of(source, "view") == state_of(source, "nothing") == ERRORED


def test_a_name_is_refused_where_a_pattern_is_not(patterned):
    source, _ = patterned("public.*", names=["no_key"])
    create(source, "a")
    source.execute(REFUSED["no_key"][0])
    source.start()
    error = source.ends_with()
    assert (error.code, error.table) == ("no_key", "public.no_key")
    assert published(source) == set()


def test_tables_come_and_go_by_themselves(patterned, quick):
    source, gate = patterned("public.*")
    # Nothing matches yet.
    with running(source):
        create(source, "a", "b", "c")
        for table in "abc":
            wait_state(source, table, READY)
        # Dropped, with changes before it, and others beside it.
        source.execute("update b set n = -1", "drop table b")
        wait_state(source, "b", REMOVED)
        change(source, "a", "c")
        source.caught_up()
        assert_log_is_source(source, ["a", "c"])
        topic = source.control().tables[TableId("public", "b")].topic
        assert topic
        # The same name again is another table, and another load.
        create(source, "b")
        source.execute("delete from b where id > 20")
        wait_state(source, "b", READY)
        # Renamed: it is gone, and another one has come.
        source.execute("alter table c rename to d", "update d set n = -2 where id = 5")
        wait_state(source, "c", REMOVED)
        wait_state(source, "d", READY)
        # Dropped and made again at once.
        source.transaction("drop table a", "create table a (id int primary key, t text)")
        source.execute("insert into a values (1, 'new')")
        source.wait_until(
            lambda: source.control().tables[TableId("public", "a")].load == 2, 60, "the next load"
        )
        wait_state(source, "a", READY)
        # Dropped in the middle of its load.
        gate.open_to(1)
        create(source, "e")
        source.wait_until(lambda: ("e", 1, 0) in gate.copied, 30, "a chunk")
        source.execute("drop table e")
        gate.open_to(10_000)
        wait_state(source, "e", REMOVED)
        change(source, "b", "d")
        source.execute("insert into a values (2, 'newer')")
        source.caught_up()
        assert_log_is_source(source, ["a", "b", "d"])
        assert published(source) == {"a", "b", "d"}
        assert [load.state for load in loads_of(source.control(), "b").values()] == [DONE, DONE]
    # And while nobody looked.
    source.execute("drop table b")
    create(source, "f")
    with running(source):
        wait_state(source, "b", REMOVED)
        wait_state(source, "f", READY)
        change(source, "d", "f")
        source.caught_up()
        assert_log_is_source(source, ["a", "d", "f"])


def test_reload_looks_at_once(patterned, asking):  # noqa: F811
    source, _ = patterned("public.a*")
    daemon = asking(source)
    create(source, "a1", "b1")
    source.execute("create table a2 (id int)")

    def reload(id, *patterns, tables=()):
        raw = [TablePattern.parse(pattern).to_json() for pattern in patterns]
        daemon.ask(id, *tables, verb="tables", patterns=raw)
        answer = daemon.answer(source, id)
        if answer["state"] == "failed":
            return answer["error"]["code"], None
        names = {name.removeprefix(f"{SOURCE}.public.") for name in answer["result"]["tables"]}
        return names, answer["result"]["set_aside"]

    with running(source):
        wait_state(source, "a1", READY)
        wait_aside(source, "a2", "no_key")
        create(source, "a3")
        names, aside = reload("one", "public.a*")
        assert names == {"a1", "a3"}
        assert aside.keys() == {f"{SOURCE}.public.a2"}
        assert "no primary key" in aside[f"{SOURCE}.public.a2"]["reason"]
        assert "ADD PRIMARY KEY" in aside[f"{SOURCE}.public.a2"]["remedy"]
        source.execute("alter table a2 add primary key (id)")
        names, aside = reload("two", "public.a*", "public.b?")
        assert (names, aside) == ({"a1", "a2", "a3", "b1"}, {})
        for table in ("a2", "a3", "b1"):
            wait_state(source, table, READY)
        # By its name it is refused, and nothing changes.
        source.execute("create table c (id int)")
        assert reload("three", "public.a*", tables=["c"]) == ("no_key", None)
        assert state_of(source, "b1") == READY and state_of(source, "c") is None
        # What no pattern matches any more is not captured any more.
        names, aside = reload("four", "public.b?", tables=["a1"])
        assert names == {"a1", "b1"}
        assert state_of(source, "a3") == REMOVED
        change(source, "a1", "b1", "a3")
        source.caught_up()
        assert_log_is_source(source, ["a1", "b1"])
        assert published(source) == {"a1", "b1"}


def test_the_stream_tells_of_new_tables(patterned):
    source, _ = patterned("public.*", names=["a"], manage_publication=False)
    create(source, "a")
    source.execute(
        f'create publication "{source.settings.publication}" for all tables',
        "create schema other",
        "create table other.x (id int primary key)",
        "create table no_key (id int)",
    )
    with running(source):
        wait_state(source, "a", READY)
        wait_aside(source, "no_key", "no_key")
        # The watch would look after half a minute.
        create(source, "b")
        source.execute("insert into other.x values (1)", "insert into no_key values (1)")
        wait_state(source, "b", READY)
        change(source, "a", "b")
        source.caught_up()
        assert_log_is_source(source, ["a", "b"])
        assert state_of(source, "x", "other") is None


def test_a_table_that_is_made_unlogged_is_set_aside(patterned, quick):
    source, _ = patterned("public.*", manage_publication=False)
    create(source, "a", "b")
    source.execute(f'create publication "{source.settings.publication}" for all tables')
    with running(source):
        for table in "ab":
            wait_state(source, table, READY)
        source.execute("alter table a set unlogged", "update a set n = -1")
        wait_aside(source, "a", "unlogged")
        change(source, "b")
        source.execute("alter table a set logged", "update a set n = -2 where id = 1")
        wait_state(source, "a", READY)
        source.caught_up()
        assert_log_is_source(source, ["a", "b"])


def test_a_table_that_is_locked_keeps_nobody_waiting(patterned, quick):
    source, _ = patterned("public.*")
    create(source, "a")
    with running(source):
        wait_state(source, "a", READY)
        with source.connect(autocommit=False) as holder:
            create(source, "b", "c")
            holder.execute("lock table b in share row exclusive mode")
            wait_state(source, "c", READY)
            change(source, "a", "c")
            source.caught_up()
            assert_log_is_source(source, ["a", "c"])
        wait_state(source, "b", READY)
        source.caught_up()
        assert_log_is_source(source, ["a", "b", "c"])


def test_a_topic_of_somebody_else_keeps_nobody_back(patterned, quick, topic_prefix):
    source, _ = patterned("public.*")
    create(source, "a")
    taken, admin = f"{topic_prefix}{SOURCE}.public.b", LogAdmin(source.bootstrap)
    with running(source):
        wait_state(source, "a", READY)
        admin.create_topics(
            [table_topic(taken, partitions=1, replication_factor=1, history_ms=1000)]
        )
        other = admin.describe(taken).topic_id
        create(source, "b", "c")
        wait_state(source, "c", READY)
        # Another name is found.
        wait_state(source, "b", READY)
        change(source, "a", "b", "c")
        source.caught_up()
        assert_log_is_source(source, ["a", "b", "c"])
        assert source.control().tables[TableId("public", "b")].topic != taken
        assert admin.describe(taken).topic_id == other


def test_tables_of_another_owner_wait_for_it(patterned, quick, database):
    role = f"r_{database['dbname']}"
    source, _ = patterned("public.*")
    with psycopg.connect(**database, autocommit=True) as owner:
        owner.execute(f"create role {role} login replication password 'made-up'")
        owner.execute(f"grant create on database {database['dbname']} to {role}")
        owner.execute(f"grant create on schema public to {role}")
        try:
            conninfo = {**database, "user": role, "password": "made-up"}
            source.settings = dataclasses.replace(source.settings, conninfo=conninfo)
            source.conninfo = conninfo
            create(source, "a")
            owner.execute("create table b (id int primary key)")
            with running(source):
                wait_state(source, "a", READY)
                wait_aside(source, "b", "source_refused")
                record = source.control().tables[TableId("public", "b")]
                for statement in (
                    f"grant select on b to {role}",
                    f'alter publication "{source.settings.publication}" add table b',
                ):
                    assert statement.split(" ")[0].upper() in record.remedy
                    owner.execute(statement)
                owner.execute("insert into b values (1)")
                wait_state(source, "b", READY)
                owner.execute("insert into b values (2)")
                source.caught_up()
                assert len(source.state("b")) == 2
        finally:
            owner.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                " where not active and database = current_database()"
            )
            owner.execute(f"drop owned by {role} cascade")
            owner.execute(f"drop role {role}")


def test_partitions_are_part_of_their_table(patterned, quick):
    source, _ = patterned("public.*", "parts.p*")
    source.execute(
        "create table whole (id int primary key) partition by range (id)",
        "create table whole_1 partition of whole for values from (0) to (10)",
        "create schema parts",
        "create table parts.p2 partition of whole for values from (10) to (20)",
        "create table parts.root (id int primary key) partition by range (id)",
        "create table parts.p3 partition of parts.root for values from (0) to (10)",
        "insert into whole values (1), (11)",
        "create table joins (id int primary key)",
    )
    with running(source):
        wait_state(source, "whole", READY)
        wait_state(source, "joins", READY)
        tables = source.control().tables
        assert {str(id) for id in tables} == {"public.whole", "public.joins", "parts.p3"}
        # Nobody captures what it is a part of, so it is a table of its own.
        assert tables[TableId("parts", "p3")].state != ERRORED
        source.execute("alter table whole attach partition joins for values from (20) to (30)")
        wait_state(source, "joins", REMOVED)
        source.execute("alter table whole detach partition joins", "insert into whole values (2)")
        wait_state(source, "joins", READY)
        wait_state(source, "whole", READY)
        source.caught_up()
        assert_log_is_source(source, ["joins"])
