"""Tables of other kinds than a plain one with a primary key: the log follows them all the same."""

import dataclasses

import psycopg
import pytest

from cdc.names import TableId
from cdc.source_sql import RELATION_FILE
from cdc.states import ERRORED, REMOVED
from tests.support.capturing import SOURCE, Capturing, assert_log_is_source
from tests.support.compare import log_rows
from tests.support.gated import Gate


@pytest.fixture
def capturing(stack, database, topic_prefix):
    """Makes a source of these statements and tables."""

    def make(statements, tables):
        gate = Gate()
        gate.open_to(10**6)
        source = Capturing(stack.bootstrap, database, topic_prefix, tables, make_copier=gate)
        source.execute(*statements)
        return source

    return make


def needs_server(source, version, what):
    """Skip the test on servers that are older than what it is about."""
    if int(source.rows("show server_version_num")[0][0]) < version * 10_000:
        pytest.skip(f"{what} came with version {version}")


def let_others_publish(source, tables):
    """The source's publication is one that somebody else has made."""
    name = f"p_{source.conninfo['dbname']}"
    source.execute(f"create publication {name} for table {tables}")
    source.settings = dataclasses.replace(
        source.settings, publication=name, manage_publication=False
    )


def assert_caught_up(source, *tables):
    source.caught_up()
    assert_log_is_source(source, tables)


# --- keys that swap ---

SWAP = (
    "create table swap (id int primary key deferrable initially deferred, v text)",
    "alter table swap replica identity full",
    "insert into swap select i, 'row ' || i from generate_series(1, 6) i",
)


def swap_keys(source, big="repeat('w', 10)"):
    source.transaction("update swap set id = 3 - id where id in (1, 2)")
    source.transaction("update swap set id = id + 1 where id >= 3")
    source.transaction(
        "update swap set id = -1 where id = 1",
        "update swap set id = 1 where id = 2",
        "update swap set id = 2, v = v || '!' where id = -1",
        f"insert into swap values (50, {big}), (51, 'gone again')",
        "delete from swap where id = 51",
    )


def test_keys_that_swap_within_a_transaction(capturing):
    source = capturing(SWAP, ["swap"])
    with source.running():
        source.wait_ready()
        swap_keys(source)
        assert_caught_up(source, "swap")
        source.transaction(
            "update swap set id = 3 - id where id in (1, 2)",
            "set constraints all immediate",
            "truncate swap",
            "insert into swap values (1, 'new')",
        )
        assert_caught_up(source, "swap")
        # As another reader sees it who takes the records one by one.
        assert [row["v"] for row in source.state("swap").values()] == ["new"]


@pytest.mark.parametrize("told_again_by", ["grant select on swap to public", "analyze swap"])
def test_keys_that_swap_around_a_relation_that_is_told_again(capturing, told_again_by):
    source = capturing(SWAP, ["swap"])
    with source.running():
        source.wait_ready()
        source.transaction(
            "update swap set id = 2 where v = 'row 1'",
            told_again_by,
            "update swap set id = 3 where v = 'row 2'",
            told_again_by,
            "update swap set id = 1 where v = 'row 3'",
        )
        assert_caught_up(source, "swap")
        found = {row["id"]: row["v"] for row in source.state("swap").values()}
        assert [found[id] for id in (1, 2, 3)] == ["row 3", "row 1", "row 2"]


def test_keys_that_swap_while_the_table_is_loaded(capturing):
    source = capturing(SWAP, ["swap"])
    gate = source.make_copier
    gate._limit = 0
    with source.running():
        source.wait_until(lambda: source.frontier() is not None, 20, "the first frontier")
        source.wait_until(lambda: source.control().unfinished_loads()[0].chunks, 20, "its plan")
        swap_keys(source)
        source.caught_up()
        gate.open_to(10**6)
        source.wait_ready()
        assert_caught_up(source, "swap")
        source.execute("delete from swap where id < 5")
        assert_caught_up(source, "swap")


# --- identity FULL without a primary key ---


def test_a_unique_index_over_not_null_columns_is_the_key_of_identity_full(capturing):
    source = capturing(
        (
            "create table job (id int not null, state text not null, n int)",
            "create unique index job_key on job (id, state)",
            "create unique index job_other on job (n)",
            "alter table job replica identity full",
            "insert into job values (1, 'open', null), (2, 'open', 1)",
        ),
        ["job"],
    )
    with source.running():
        source.wait_ready()
        source.execute("update job set state = 'done' where id = 1", "update job set n = id")
        assert_caught_up(source, "job")
        schema, _ = log_rows(
            source.bootstrap, SOURCE, TableId("public", "job"), source.settings.topic_prefix
        )
        assert schema.key == ("id", "state")


# --- partitioned tables ---

PARTITIONED = (
    "create table logs (id int, m int, v text, primary key (id, m)) partition by range (m)",
    "create table logs_1 partition of logs for values from (1) to (2)",
    "create table logs_2 (v text, gone int, m int not null, id int not null)",
    "alter table logs_2 drop gone",
    "alter table logs attach partition logs_2 for values from (2) to (4)",
    "insert into logs select i, 1 + i % 3, 'row ' || i from generate_series(1, 30) i",
    "create table plain (id int primary key, v text)",
)


def test_a_partitioned_table_comes_under_its_own_name(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source = capturing(PARTITIONED, ["logs", "plain"])
    with source.running():
        source.wait_ready()
        # The partitions are known once they were looked at.
        source.execute("select pg_sleep(1)")
        source.execute(
            "insert into logs values (100, 1, 'streamed'), (101, 3, 'streamed')",
            "update logs set m = 3 where id in (3, 6)",
            "update logs_2 set v = 'by its own name' where id in (1, 2)",
            "delete from logs where id in (9, 10)",
            "create table logs_4 partition of logs for values from (4) to (5)",
            "insert into logs values (200, 4, 'in a new partition')",
            "update logs set m = 4 where id = 100",
        )
        assert_caught_up(source, "logs", "plain")
        source.execute("select pg_sleep(1)")
        # A partition that was made empty is no reason to read everything again.
        assert source.record("logs").load == 1
        source.execute("truncate logs", "insert into logs values (1, 1, 'after')")
        assert_caught_up(source, "logs")


def test_partitions_of_another_replica_identity(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source = capturing(
        (
            "create table docs (id int, m int, v text, code int not null, body text,"
            " primary key (id, m)) partition by range (m)",
            "create table docs_1 partition of docs for values from (1) to (2)",
            "create table docs_2 partition of docs for values from (2) to (3)",
            "create unique index code_2 on docs_2 (code)",
            "alter table docs alter body set storage external",
            "alter table docs_1 alter body set storage external",
            # It is not inherited.
            "alter table docs replica identity full",
            "insert into docs select i, 1 + i % 2, 'row', i, repeat('long', 2000)"
            " from generate_series(1, 8) i",
        ),
        ["docs"],
    )
    with source.running():
        source.wait_ready()
        # The old row of these has the key only, and is told as a whole one.
        source.execute(
            "update docs set id = 102 where id = 2",
            "update docs set v = 'other' where id = 4",
            "delete from docs where id = 6",
        )
        assert_caught_up(source, "docs")
        (deleted,) = [record for record in source.records("docs") if record.op == "d"][-1:]
        assert set(deleted.before) == {"id", "m"}
        # And of these it would not have the key.
        source.execute("alter table docs_2 replica identity using index code_2")
        source.wait_until(lambda: source.record("docs").state == ERRORED, 30, "the state")
        record = source.record("docs")
        assert "partition_identity" in record.reason and "public.docs" in record.reason
        assert record.remedy.startswith("ALTER TABLE public.docs_2 REPLICA IDENTITY FULL;")
        source.execute(
            "update docs set id = 103 where id = 3",
            "alter table docs_2 replica identity full",
        )
        source.wait_loaded("docs", 2)
        assert_caught_up(source, "docs")


WITHOUT_EVENTS = {
    "detached_for_a_while": (
        "begin; alter table logs detach partition logs_1; update logs_1 set v = 'apart';"
        " alter table logs attach partition logs_1 for values from (1) to (2); commit",
    ),
    "detached": ("alter table logs detach partition logs_1",),
    "attached": (
        "create table logs_9 (id int not null, m int not null, v text)",
        "insert into logs_9 values (900, 9, 'came with it')",
        "alter table logs attach partition logs_9 for values from (9) to (10)",
    ),
    "emptied": ("truncate logs_1",),
    "dropped": ("drop table logs_1",),
}


@pytest.mark.parametrize("what", WITHOUT_EVENTS)
def test_partitions_that_come_or_go_with_rows_load_the_table_anew(capturing, monkeypatch, what):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source = capturing(PARTITIONED, ["logs", "plain"])
    with source.running():
        source.wait_ready()
        source.execute("insert into plain values (1, 'x')", "update logs set v = v || '!'")
        source.caught_up()
        source.execute("select pg_sleep(0.7)")
        source.execute(*WITHOUT_EVENTS[what])
        source.wait_loaded("logs", 2)
        source.execute("update logs set v = 'last' where m = 2")
        assert_caught_up(source, "logs", "plain")
        assert source.record("plain").load == 1


# --- a publication that somebody else keeps ---


def test_a_publication_for_all_tables_that_is_not_ours(capturing):
    source = capturing(
        (
            "create table orders (id int primary key, v text)",
            "create table others (id int primary key)",
            "insert into orders values (1, 'a')",
        ),
        ["orders"],
    )
    theirs = f"p_{source.conninfo['dbname']}"
    source.execute(f"create publication {theirs} for all tables")
    source.settings = dataclasses.replace(
        source.settings, publication=theirs, manage_publication=False
    )
    with source.running():
        source.wait_ready()
        source.execute("insert into orders values (2, 'b')", "insert into others values (1)")
        assert_caught_up(source, "orders")


def test_a_column_list_leaves_the_other_columns_out(capturing):
    source = capturing(
        (
            "create table partial (id int primary key, secret text, shown text)",
            "insert into partial values (1, 'secret 1', 'a')",
        ),
        ["partial"],
    )
    needs_server(source, 15, "column lists")
    let_others_publish(source, "partial (id, shown)")
    with source.running():
        source.wait_ready()
        source.execute(
            "insert into partial values (2, 'secret 2', 'b')",
            "update partial set secret = 'changed' where id = 1",
        )
        assert_caught_up(source, "partial")
        assert all(set(row) == {"id", "shown"} for row in source.state("partial").values())


@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_row_filter_leaves_the_other_rows_out(capturing, identity):
    source = capturing(
        (
            "create table partial (id int, shown int, big text, primary key (id, shown))",
            f"alter table partial replica identity {identity}",
            "alter table partial alter big set storage external",
            "insert into partial select i, i % 3, repeat('b', 4000) || i"
            " from generate_series(1, 300) i",
        ),
        ["partial"],
    )
    needs_server(source, 15, "row filters")
    let_others_publish(source, "partial where (shown > 0 and id <> 7)")
    with source.running():
        source.wait_ready()
        assert_caught_up(source, "partial")
        source.execute(
            "insert into partial values (301, 0, 'hidden'), (302, 1, 'shown')",
            # Into the filter, with a value that is not sent; out of it; and on its other side.
            "update partial set shown = 2 where id in (3, 6)",
            "update partial set shown = 0 where id in (4, 5)",
            "update partial set big = 'changed' where id in (7, 8, 9)",
            "delete from partial where id between 10 and 20",
            "delete from partial where id = 7",
        )
        assert_caught_up(source, "partial")
        held = source.state("partial").values()
        assert {row["shown"] for row in held} == {1, 2} and len(held) == 192
        # The server makes an insert of it, whose old value only FULL has.
        brought = [r for r in source.records("partial") if r.after and r.after["id"] == 3]
        assert [(r.op, r.unchanged) for r in brought] == (
            [("u", ("big",))] if identity == "default" else [("c", ())]
        )


def test_another_row_filter_loads_the_table_anew(capturing):
    source = capturing(
        (
            "create table partial (id int primary key)",
            "insert into partial select generate_series(1, 10)",
        ),
        ["partial"],
    )
    needs_server(source, 15, "row filters")
    let_others_publish(source, "partial where (id > 4)")
    with source.running():
        source.wait_ready()
        publication = source.settings.publication
        source.execute(
            f"alter publication {publication} set table partial where (id > 2)",
            "insert into partial values (0), (11)",
        )
        source.wait_until(lambda: source.record("partial").load > 1, 60, "the next load")
        source.wait_ready()
        assert_caught_up(source, "partial")
        assert {row["id"] for row in source.state("partial").values()} == set(range(3, 12))


def test_tables_that_inherit_are_tables_of_their_own(capturing):
    source = capturing(
        (
            "create table parent (id int primary key, v text)",
            "create table child (extra int, primary key (id)) inherits (parent)",
            "create table another (primary key (id)) inherits (parent)",
            "insert into parent values (1, 'parent')",
            "insert into child values (1, 'child', 7)",
            "insert into another values (1, 'not captured')",
        ),
        ["parent", "child"],
    )
    with source.running():
        source.wait_ready()
        assert_caught_up(source, "parent", "child")
        source.execute(
            # Of all three.
            "update parent set v = v || '!'",
            "insert into child values (2, 'c', 8), (3, 'd', 9)",
            "delete from parent where id = 3",
            "alter table parent add column w int",
            "update parent set w = id",
        )
        assert_caught_up(source, "parent", "child")
        assert {row["w"] for row in source.state("child").values()} == {1, 2}
        source.execute(
            "alter table child no inherit parent",
            "update parent set v = 'alone'",
            "alter table child inherit parent",
            "update parent set v = 'again' where id = 2",
        )
        assert_caught_up(source, "parent", "child")
        source.execute("truncate parent", "insert into parent values (4, 'after')")
        assert_caught_up(source, "parent", "child")
        assert source.state("child") == {} and len(source.state("parent")) == 1
    # One can go without the other.
    source.settings = dataclasses.replace(
        source.settings, tables=tuple(t for t in source.settings.tables if t.table == "child")
    )
    with source.running():
        source.wait_until(lambda: source.record("parent").state == REMOVED, 20, "the removal")
        source.execute("insert into child values (5, 'e', 1)")
        # Columns that are inherited no more, and a new file by the truncate: seen together, they
        # pass for a change of the values, and the table is loaded anew.
        source.wait_until(lambda: source.state("child"), 60, "the table of now")
        assert_caught_up(source, "child")
    published = "select tablename::text from pg_publication_tables where pubname = "
    assert source.rows(f"{published}'{source.settings.publication}'") == [("child",)]


def test_generated_columns_are_there_when_the_publication_has_them(capturing):
    source = capturing(
        (
            "create table sums (id int primary key, a int, twice int generated always as (a * 2)"
            " stored, label text generated always as ('n' || a) stored)",
            "insert into sums (id, a) values (1, 10)",
        ),
        ["sums"],
    )
    needs_server(source, 18, "published generated columns")
    let_others_publish(source, "sums with (publish_generated_columns = stored)")
    with source.running():
        source.wait_ready()
        source.execute("insert into sums (id, a) values (2, 20)", "update sums set a = 11")
        assert_caught_up(source, "sums")
        assert {row["twice"] for row in source.state("sums").values()} == {22}


def test_a_relations_file_and_its_columns_are_of_one_moment(database):
    """Seen apart, a rewrite that came with a new column would pass for one that was known."""
    query = (
        f"select {RELATION_FILE.format(c='c')},"
        " (select count(*) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0)"
        " from pg_class c where c.relname in ('plain', 'logs') order by c.relname"
    ).encode()
    with (
        psycopg.connect(**database, autocommit=True) as writer,
        psycopg.connect(**database) as reader,
    ):
        for statement in PARTITIONED:
            writer.execute(statement)
        reader.execute("set transaction isolation level repeatable read")
        before = reader.execute(query).fetchall()
        writer.execute("alter table plain add d float8 default random()")
        writer.execute("alter table logs detach partition logs_1")
        assert reader.execute(query).fetchall() == before
        reader.rollback()
        after = reader.execute(query).fetchall()
    assert all(new[0] != old[0] for old, new in zip(before, after, strict=True))
