"""What each ``schema_policy`` makes of changes of tables' forms, through the log and the query."""

import contextlib
import dataclasses

import pytest

from cdc.names import TableId
from cdc.query.run import run_query
from cdc.schema_policy import SchemaPolicies
from cdc.states import ERRORED, READY, WAITS
from cdc.status import collect_status
from cdc.table_names import TablePattern
from tests.support.asking import Asking
from tests.support.capturing import SOURCE, Capturing, assert_log_is_source
from tests.support.gated import Gate
from tests.support.verifying import Verifying

CREATE = "create table {t} (id int primary key, name text, n numeric(10,2) not null)"


@pytest.fixture
def capturing(stack, database, topic_prefix, monkeypatch):
    """Makes a source whose tables are really copied, with policies by table."""
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)

    def make(tables, **policies):
        gate = Gate()
        gate.open_to(10**6)
        source = Capturing(stack.bootstrap, database, topic_prefix, tables, make_copier=gate)
        own = tuple((TablePattern.parse(f"public.{t}"), p) for t, p in policies.items())
        source.settings = dataclasses.replace(
            source.settings, schema_policies=SchemaPolicies("lenient", own)
        )
        for table in tables:
            source.execute(CREATE.format(t=table), f"insert into {table} values (1, 'old', 1)")
        return source

    return make


def schema_of(source, table):
    record = source.record(table)
    return source.control().newest_schema(record.id, record.load)


def names(columns):
    return [column.name for column in columns]


def test_dropped_columns_are_followed_without_a_load(capturing, tmp_path):
    source = capturing(["told", "inside", "silent", "again", "evolving"], evolving="evolve")
    tables = [id.table for id in source.settings.tables]
    with source.running():
        source.wait_ready()
        source.execute("alter table told drop n", "insert into told values (2, 'new')")
        source.transaction(
            "insert into inside select 2, repeat('long', 1000), 2",
            "alter table inside drop name",
            "update inside set n = n + 1",
            "insert into inside values (3, 3)",
        )
        source.execute("alter table silent drop name")
        source.execute("alter table again drop n", "insert into again values (2, 'new')")
        source.execute("alter table evolving drop n", "update evolving set name = 'new'")
        source.wait_until(lambda: names(schema_of(source, "silent").kept) == ["name"], 20, "it")
        # Behind what the watch has told.
        source.execute("insert into told values (3, 'new')")
        source.caught_up()
        assert_log_is_source(source, tables)
        assert {source.record(table).load for table in tables} == {1}
        project = Verifying(tmp_path, source)
        assert {found.outcome for found in project.verify().values()} == {"equal"}

        def rows(table):
            found = run_query(project.config, f"select * from shop.public.{table} order by id")
            return [dict(zip(found.columns, row, strict=True)) for row in found.rows]

        assert rows("told")[:2] == [
            {"id": 1, "name": "old", "n": None},
            {"id": 2, "name": "new", "n": None},
        ]
        assert [(row["name"], int(row["n"])) for row in rows("inside")] == [
            (None, 2),
            (None, 3),
            (None, 3),
        ]
        assert [row["name"] for row in rows("silent")] == [None]
        assert rows("evolving") == [{"id": 1, "name": "new"}]
        apart = collect_status(project.config)["sources"]["shop"]["tables"]
        (told,) = apart["public.told"]["columns_apart"]
        assert (told["name"], told["why"]) == ("n", "dropped")
        assert told["since"] <= str(source.frontier().position)
        assert apart["public.evolving"]["columns_apart"] == []
        # Another column under the name of one that is gone: its rows never had the old values.
        source.execute("alter table again add n numeric(10,2)", "update again set n = 7")
        source.wait_loaded("again", 2)
        source.execute("alter table silent add name text", "insert into silent values (5, 5)")
        source.wait_loaded("silent", 2)
        source.caught_up()
        assert_log_is_source(source, tables)
        assert [row["name"] for row in rows("silent")] == [None, None]
    # All of it is in control.
    with source.running():
        source.execute("update told set name = 'newest'", "update inside set n = 0")
        source.caught_up()
        assert_log_is_source(source, tables)
        assert source.record("told").load == source.record("inside").load == 1


def test_a_column_of_a_quiet_table_is_there_without_an_event(capturing, tmp_path):
    source = capturing(["quiet", "swapped", "hidden"], hidden="ignore")
    tables = [id.table for id in source.settings.tables]
    with source.running():
        source.wait_ready()
        for table in tables:
            source.execute(f"alter table {table} add at timestamptz, add tags text")
        # One more that comes while another one goes.
        source.execute("alter table swapped drop n")

        def columns(table):
            return names(schema_of(source, table).columns)

        more = {"at", "tags"}
        source.wait_until(lambda: all(more < {*columns(t)} for t in tables), 20, "them")
        source.wait_until(lambda: "n" not in columns("swapped"), 20, "it to be gone")
        assert names(schema_of(source, "hidden").ignored) == ["at", "tags"]
        source.caught_up()
        project = Verifying(tmp_path, source)
        assert {found.outcome for found in project.verify().values()} == {"equal"}
        found = run_query(project.config, 'select "at", tags from shop.public.quiet')
        assert found.rows == [(None, None)]
        # The next event tells nothing new.
        versions = [schema_of(source, table).version for table in tables]
        source.execute(
            "insert into quiet values (2, 'new', 2, '2024-02-29 00:00:00+00', '{a}')",
            "update quiet set tags = '{b}' where id = 1",
            "insert into swapped (id, tags) values (2, '{a}')",
            "insert into hidden (id, n, tags) values (2, 2, '{a}')",
        )
        source.caught_up()
        assert_log_is_source(source, tables)
        assert [schema_of(source, table).version for table in tables] == versions
        assert {source.record(table).load for table in tables} == {1}
    # Nor does a restart.
    with source.running():
        source.execute("insert into quiet values (3, 'new', 2, null, '{c}')")
        source.caught_up()
        assert_log_is_source(source, tables)
        assert schema_of(source, "quiet").version == versions[0]


def test_exception_stops_one_table_until_somebody_asks_for_a_load(capturing):
    source = capturing(["told", "silent", "others"], told="exception", silent="exception")
    with contextlib.closing(Asking(source)) as daemon, source.running():
        source.wait_ready()
        good = source.caught_up().position
        source.execute(
            "alter table told add more int",
            "insert into told values (2, 'x', 2, 2)",
            "alter table silent add more int",
            "insert into others values (2, 'goes on', 2)",
        )
        for table in ("told", "silent"):
            source.wait_until(lambda t=table: source.record(t).state == ERRORED, 20, "the state")
        source.caught_up()
        assert_log_is_source(source, ["others"])
        for table in ("told", "silent"):
            record = source.record(table)
            assert (record.aside, record.load) == (WAITS, 1)
            assert record.last_good is not None and record.last_good >= good
            assert "column more was added" in record.reason and "position" in record.reason
            assert f"cdc snapshot {SOURCE}.public.{table}" in record.remedy
        # Nothing begins by itself, not even at a restart.
    with contextlib.closing(Asking(source)) as daemon, source.running():
        source.execute("insert into others values (3, 'x', 3)")
        source.caught_up()
        assert not source.control().unfinished_loads()
        assert source.record("told").state == ERRORED
        # A policy that is changed counts from then on.
        policies = SchemaPolicies().to_json()
        tables = [id.table for id in source.settings.tables]
        daemon.ask("reload", *tables, verb="tables", schema_policies=policies)
        assert daemon.answer(source, "reload")["state"] == "done"
        assert source.record("told").state == ERRORED
        daemon.ask("one", "told", "silent")
        assert daemon.answer(source, "one")["state"] == "done"
        source.execute(
            "insert into told values (4, 'x', 4, 4)",
            "alter table told add most int",
            "insert into told values (5, 'x', 5, 5, 5)",
        )
        source.caught_up()
        assert_log_is_source(source, ["told", "silent", "others"])
        assert {source.record(table).state for table in tables} == {READY}
        assert source.record("told").load == 2


def test_evolve_stops_where_it_cannot_follow_and_try_evolve_loads(capturing):
    source = capturing(["strict", "trying"], strict="evolve", trying="try_evolve")
    with source.running():
        source.wait_ready()
        for table in ("strict", "trying"):
            source.execute(
                f"alter table {table} add more int, drop name",
                f"insert into {table} values (2, 2, 2)",
            )
        source.caught_up()
        assert {source.record(table).load for table in ("strict", "trying")} == {1}
        for table in ("strict", "trying"):
            source.execute(
                f"alter table {table} alter n type float8",
                f"insert into {table} values (3, 3, 3)",
            )
        source.wait_until(lambda: source.record("strict").state == ERRORED, 20, "the state")
        source.wait_loaded("trying", 2)
        source.caught_up()
        assert_log_is_source(source, ["trying"])
        record = source.record("strict")
        assert record.aside == WAITS and "type of column n" in record.reason
        schema = source.control().newest_schema(TableId("public", "strict"), 1)
        assert names(schema.columns) == ["id", "n", "more"]
        assert (names(schema.dropped), schema.kept) == (["name"], ())


def test_ignore_keeps_the_columns_and_tells_of_others(capturing, tmp_path):
    source = capturing(["orders"], orders="ignore")
    with contextlib.closing(Asking(source)) as daemon, source.running():
        source.wait_ready()
        source.execute(
            "alter table orders add d int not null default 7",
            "insert into orders values (2, 'x', 2)",
            "alter table orders rename name to title",
            "update orders set n = 3 where id = 2",
        )
        source.caught_up()
        # Nothing but the catalog tells.
        source.execute("alter table orders add e int default 8")
        source.wait_until(lambda: "e" in schema_of(source, "orders").column_names, 20, "it")
        source.caught_up()
        assert (source.record("orders").state, source.record("orders").load) == (READY, 1)
        assert_log_is_source(source, ["orders"])
        project = Verifying(tmp_path, source)
        found = run_query(project.config, "select * from shop.public.orders order by id")
        assert (found.columns, [(i, int(n), x) for i, n, x in found.rows]) == (
            ("id", "n", "name"),
            [(1, 1, None), (2, 3, None)],
        )
        verified = project.verify("orders")["orders"]
        assert verified.outcome == "equal"
        assert "title" in verified.notes[0] and "d" in verified.notes[0]
        table = collect_status(project.config)["sources"]["shop"]["tables"]["public.orders"]
        assert [(c["name"], c["why"]) for c in table["columns_apart"]] == [
            ("name", "dropped"),
            ("title", "ignored"),
            ("d", "ignored"),
            ("e", "ignored"),
        ]

        def counted():
            columns = (daemon.metrics() or {"columns": {}})["columns"]
            return columns.get(f"{SOURCE}.public.orders") == {"dropped": 1, "ignored": 3}

        source.wait_until(counted, 10, "the metrics")
        # The next load takes the table as it is.
        daemon.ask("one", "orders")
        assert daemon.answer(source, "one")["state"] == "done"
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        found = run_query(project.config, "select * from shop.public.orders")
        assert set(found.columns) == {"id", "title", "n", "d", "e"}


def test_columns_that_differ_by_case_only(capturing, tmp_path):
    source = capturing(["orders"])
    source.execute('alter table orders add "N" text', """update orders set "N" = 'upper'""")
    with source.running():
        source.wait_ready()
        source.execute(
            'alter table orders add "ID" int',
            """insert into orders values (2, 'x', 2, 'two', 22)""",
            "alter table orders drop n",
            'update orders set "N" = null where id = 1',
        )
        source.caught_up()
        assert_log_is_source(source, ["orders"])
        assert source.record("orders").load == 1
        project = Verifying(tmp_path, source)
        assert project.verify("orders")["orders"].outcome == "equal"
        query = 'select id, "ID~4944", n, "N~4e" from shop.public.orders order by id'
        assert run_query(project.config, query).rows == [
            (1, None, None, None),
            (2, 22, None, "two"),
        ]
