"""``cdc verify``: what is equal is found equal, and every difference is named by its key."""

import json

import pytest

from cdc.position import parse_lsn
from cdc.verify.result import Difference
from tests.support.capturing import Capturing
from tests.support.verifying import Verifying

TABLES = """
    create table orders (id bigint primary key, customer int, total numeric(10,2), note text);
    create table places (country text, "zip code" varchar(10), x float8, primary key ("zip code",
                         country))
"""


@pytest.fixture
def project(stack, database, topic_prefix, tmp_path):
    """Both tables are captured, with 300 orders and two places that came by the stream."""
    capturing = Capturing(stack.bootstrap, database, topic_prefix, ["orders", "places"])
    capturing.execute(TABLES)
    with capturing.running():
        capturing.wait_ready()
        capturing.execute(
            "insert into orders"
            " select i, i % 7, i + 0.5, 'note ' || i from generate_series(1, 300) i",
            "insert into places values ('FR', '75001', 'NaN'), (E'a\\x1f', 'b,\\\\', '-0')",
        )
        capturing.caught_up()
        yield Verifying(tmp_path, capturing)


def test_equal_tables(project):
    capturing = project.capturing
    project.write_replica("orders")
    capturing.execute(
        "update orders set note = null, total = -total where id % 50 = 0",
        "delete from orders where id = 7",
        "update orders set id = 1000 where id = 8",
        "insert into orders values (-5, null, 0, '')",
    )
    found = project.verify()
    orders, places = found["orders"], found["places"]
    assert (orders.outcome, places.outcome) == ("equal", "equal")
    assert orders.source_rows == orders.derived_rows == 300
    assert (places.source_rows, places.derived_rows) == (2, 2)
    assert orders.replica is not None and places.replica is None
    # Six updates, one delete, a key change, an insert.
    assert orders.tail_keys == 10
    # All tables at the one position.
    assert orders.position == places.position
    assert orders.position.lsn <= capturing.caught_up().record.end_lsn
    assert not orders.differences and orders.complete and not orders.notes
    slots = "select slot_name from pg_replication_slots where slot_name like 'cdc\\_verify%'"
    assert capturing.rows(slots) == []


def test_what_is_committed_after_the_position_does_not_count(project):
    project.meanwhile = ("update orders set note = 'later'", "delete from places")
    found = project.verify()
    assert {table.outcome for table in found.values()} == {"equal"}
    assert found["places"].derived_rows == 2


# --- Negative controls ---------------------------------------------------------------------


def test_a_corrupted_replica(project):
    project.write_replica("orders")
    project.update("orders", "id = 5", note="'note 4'")
    assert project.different("orders").differences == (
        Difference("different", {"id": 5}, ("note",)),
    )
    project.delete("orders", "id = 300")
    project.copy("orders", 1, 301)
    orders = project.different("orders")
    assert orders.differences == (
        Difference("different", {"id": 5}, ("note",)),
        Difference("missing", {"id": 300}),
        Difference("extra", {"id": 301}),
    )
    assert (orders.source_rows, orders.derived_rows, orders.complete) == (300, 300, True)
    # The replica alone is what is wrong: what the log changes later is right.
    project.capturing.execute("update orders set note = 'new' where id in (5, 300)")
    assert project.different("orders").differences == (Difference("extra", {"id": 301}),)


def test_values_only_if_asked(project):
    project.write_replica("orders")
    project.update("orders", "id = 5", total="7.25")
    project.delete("orders", "id = 6")
    one, other = project.different("orders").differences
    assert "7.25" not in repr((one, other)) and one.source is one.derived is None
    one, other = project.different("orders", values=True).differences
    assert (one.source, one.derived) == ({"total": "5.50"}, {"total": "7.25"})
    row = {"id": 6, "customer": 6, "total": "6.50", "note": "note 6"}
    assert (other.kind, other.source, other.derived) == ("missing", row, None)


def test_a_row_that_is_there_twice(project):
    project.write_replica("orders")
    project.copy("orders", 9, 9)
    orders = project.different("orders")
    assert orders.differences == (Difference("duplicated", {"id": 9}),)
    assert (orders.source_rows, orders.derived_rows) == (300, 301)


def test_a_change_in_the_log_alone(project):
    project.write_replica("orders")
    # Above the replica's position.
    project.capturing.execute("update orders set total = 1 where id = 11")
    project.capturing.caught_up()
    project.forge("orders", b'{"id":11}', note="forged")
    project.forge("places", b'{"zip code":"75001","country":"FR"}', x=0.0)
    orders = project.different("orders")
    assert orders.differences == (Difference("different", {"id": 11}, ("note",)),)
    key = {"zip code": "75001", "country": "FR"}
    assert project.different("places").differences == (Difference("different", key, ("x",)),)


def test_small_differences_of_values(project):
    project.forge("places", b'{"zip code":"b,\\\\\\\\","country":"a\\u001f"}', x=0.0)
    (found,) = project.different("places", values=True).differences
    # 0 is not -0.
    assert (found.source, found.derived) == ({"x": -0.0}, {"x": 0.0})
    assert str(found.source["x"]) == "-0.0"


def test_a_long_list_is_cut(project):
    project.write_replica("orders")
    project.update("orders", "id > 200", note="'x'")
    orders = project.different("orders", limit=20)
    assert (len(orders.differences), orders.complete, orders.differing_ranges) == (20, False, 100)
    orders = project.different("orders", limit=100)
    assert [d.key["id"] for d in orders.differences] == list(range(201, 301))
    assert orders.complete


# --- The replica alone -----------------------------------------------------------------------


def test_the_replica_alone(project):
    capturing = project.capturing
    project.write_replica("orders")
    capturing.execute("update places set x = 1", "create table other (i int)")
    # Nothing of the table happened since.
    orders = project.verify("orders", replica=True)["orders"]
    assert (orders.outcome, orders.derived_rows) == ("equal", 300)
    assert orders.replica < orders.position
    capturing.execute("update orders set note = 'n' where id < 3")
    refused = project.verify("orders", "places", replica=True, wait_s=1.0)
    assert refused["orders"].error.code == "replica_not_at_position"
    assert "2 keys changed between" in refused["orders"].error.message
    assert "not been written" in refused["places"].error.message
    # The replica that apply writes next is newer than the snapshot's position.
    project.meanwhile = ("update places set x = 2",)
    project.when_open = lambda: (capturing.caught_up(), project.replace_replica("orders"))
    orders = project.verify("orders", replica=True)["orders"]
    assert orders.outcome == "equal"
    assert orders.replica > orders.position
    project.update("orders", "id = 1", note="'bad'")
    project.meanwhile, project.when_open = (), lambda: None
    orders = project.different("orders", replica=True)
    assert orders.differences == (Difference("different", {"id": 1}, ("note",)),)


# --- The source changes meanwhile ------------------------------------------------------------


#: What happens to a table once the snapshot is taken, and how the refusal tells it.
ALTERED = {
    "truncate {t}": "truncated or rewritten",
    "drop table {t}": "dropped or renamed",
    "alter table {t} rename to elsewhere": "dropped or renamed",
    "alter table {t} rename x to y": "column was dropped or renamed",
    "alter table {t} drop x": "column was dropped or renamed",
    "alter table {t} rename x to y; alter table {t} add x float8": "column x was dropped",
    "alter table {t} alter x type numeric": "truncated or rewritten",
}


def test_tables_altered_meanwhile(stack, database, topic_prefix, tmp_path):
    names = [f"t{i}" for i in range(len(ALTERED))]
    capturing = Capturing(stack.bootstrap, database, topic_prefix, [*names, "same"])
    for name in (*names, "same"):
        capturing.execute(f"create table {name} (id int primary key, x float8)")
    with capturing.running():
        capturing.wait_ready()
        capturing.caught_up()
        project = Verifying(tmp_path, capturing)
        project.meanwhile = tuple(
            statement.format(t=name) for name, statement in zip(names, ALTERED, strict=True)
        )
        found = project.verify()
    assert found["same"].outcome == "equal"
    for name, (statement, what) in zip(names, ALTERED.items(), strict=True):
        error = found[name].error
        assert (found[name].outcome, error.code) == ("refused", "table_altered"), statement
        assert what in error.message, statement
        assert error.remedy


def test_a_column_that_the_log_has_not_seen(project):
    project.capturing.execute(
        "alter table orders add extra text",
        "alter table orders add twice int generated always as (customer * 2) stored",
    )
    orders = project.verify("orders")["orders"]
    assert orders.outcome == "equal"
    extra, twice = orders.notes
    assert "extra: not published, or added" in extra and "twice: generated" in twice


def test_nothing_but_access_share_is_locked(project):
    capturing = project.capturing
    schema = capturing.control().schemas[next(iter(capturing.control().schemas))][1]
    with project.open("shop") as snapshot:
        locks = (
            "select relation::regclass::text, mode from pg_locks l join pg_stat_activity a using"
            " (pid) where locktype = 'relation' and relation >= 16384 and a.pid <> pg_backend_pid()"
            f" and a.datname = '{capturing.conninfo['dbname']}'"
        )
        assert capturing.rows(locks) == []
        with snapshot.table(schema) as table:
            assert sum(part.rows for part in table.sums().values()) == 300
            assert set(capturing.rows(locks)) == {
                ("orders", "AccessShareLock"),
                ("orders_pkey", "AccessShareLock"),
            }
            # Writers go on.
            capturing.execute("update orders set note = 'w'", "delete from orders where id = 1")
        assert capturing.rows(locks) == []
        session = "select state, query from pg_stat_activity where state like 'idle in%'"
        assert len(capturing.rows(session)) == 1


# --- States and the environment --------------------------------------------------------------


def test_the_log_does_not_come(project, capsys):
    project.capturing.stop()
    project.capturing.execute("insert into orders values (999, 1, 1, 'x')")
    assert project.cli("--json", "--wait", "1", "shop.public.orders") == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["error"]["code"]) == (False, "log_behind")
    assert "cdc start" in answer["error"]["remedy"]
    project.capturing.start()


def test_the_command(project, capsys):
    assert project.cli("shop.public.nothing") == 2
    assert "names no table shop.public.nothing" in capsys.readouterr().err
    assert project.cli() == 0
    out = capsys.readouterr().out
    assert "shop.public.orders: equal, 300 rows at " in out and "2 tables equal" in out
    project.forge("orders", b'{"id":11}', note="forged")
    assert project.cli("--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["error"]["code"]) == (False, "tables_differ")
    orders, places = answer["result"]["tables"]
    assert (orders["outcome"], places["outcome"]) == ("different", "equal")
    assert orders["differences"] == [{"kind": "different", "key": {"id": 11}, "columns": ["note"]}]
    assert orders["listed"] == {"missing": 0, "extra": 0, "different": 1, "duplicated": 0}
    assert parse_lsn(orders["lsn"]) > 0
    assert project.cli("--values") == 1
    out = capsys.readouterr().out
    assert 'different   {"id": 11}  in note' in out and 'derived: {"note": "forged"}' in out


def test_open_transactions_are_named(project):
    with project.capturing.connect(autocommit=False) as other:
        other.execute("create table t (i int)")
        (pid,) = other.execute("select pg_backend_pid()").fetchone()
        project.wait_s = 1
        error = project.verify("orders")["orders"].error
        assert (error.code, error.exit_code) == ("transactions_open", 3)
        assert f"pid {pid}" in error.message
        other.rollback()
    assert project.verify("orders")["orders"].outcome == "equal"
