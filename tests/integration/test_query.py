"""``cdc query`` over a real log: everything that is in the log is seen, at one frontier."""

import csv
import datetime as dt
import io
import json
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc import codecs
from cdc.config import load_config
from cdc.errors import CdcError
from cdc.names import TableId
from cdc.position import frontier
from cdc.query.output import json_value
from cdc.query.run import run_query
from cdc.states import ADDED, CATCHING_UP, ERRORED, READY, SNAPSHOTTING
from cdc.unsent import UNSENT
from tests.support.loggen import Delete, Insert, LogGen, Truncate, Update
from tests.support.replicas import write_replica
from tests.support.schemas import all_types_row, all_types_schema, column, table_schema

ORDERS = table_schema(
    column(1, "id", codecs.INT8, not_null=True),
    column(2, "customer_id", codecs.INT4),
    column(3, "total", codecs.NUMERIC, type="numeric(10,2)"),
    column(4, "note", codecs.TEXT),
)
CUSTOMERS = table_schema(("id", codecs.INT4), ("name", codecs.TEXT), table="customers")


def order(id, customer=1, total=b"1.50", note=None) -> list[object]:
    return [b"%d" % id, b"%d" % customer, total, note]


def customer(id, name) -> list[object]:
    return [b"%d" % id, name]


@dataclass
class Project:
    folder: Path
    gen: LogGen
    config: Any

    @property
    def lake(self):
        return self.folder / "lake"

    def query(self, sql, **options):
        return run_query(self.config, sql, **options)

    def rows(self, sql):
        return self.query(sql).rows

    def says(self, line):
        """A line more in cdc.yaml's source; takes the place of an earlier one."""
        path = self.folder / "cdc.yaml"
        text = path.read_text().split("    types:")[0]
        path.write_text(f"{text}    {line}\n")
        self.config = load_config(path)

    def refused(self, sql, **options):
        with pytest.raises(CdcError) as error:
            self.query(sql, **options)
        return error.value

    def cli(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "cdc.cli.main", "-c", str(self.folder / "cdc.yaml"), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def merge(self, schema, *, ends=None, **options):
        """A replica with what the source holds now; ``ends=False``: its commit says no ends."""
        table = self.gen.tables[schema.id]
        if ends is None or ends is True:
            ends = self.gen.ends.get(table.topic, {})
        return write_replica(
            self.lake,
            "shop",
            schema,
            self.gen.rows[schema.id],
            self.gen.position,
            table.topic_id,
            ends=None if ends is False else ends,
            **options,
        )


@pytest.fixture
def project(stack, topic_prefix, tmp_path):
    """A project whose log is made up; the tables are made by the test."""
    folder = tmp_path / "my próject"
    folder.mkdir()
    (folder / "cdc.yaml").write_text(
        f"""\
project: test
log: {{bootstrap_servers: "{stack.bootstrap}", topic_prefix: "{topic_prefix}"}}
lake: {{path: ./lake}}
sources:
  shop:
    kind: postgres
    host: localhost
    database: shop
    user: nobody
    tables: [public.orders, public.customers, public.all_types, '"My Schema"."Odd.Name"']
"""
    )
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        yield Project(folder, gen, load_config(folder / "cdc.yaml"))


@pytest.fixture
def shop(project):
    """Orders 1 to 3 in three partitions, customers 1 and 2, all Ready."""
    project.gen.create([ORDERS, CUSTOMERS], partitions=3)
    project.gen.load(
        {
            ORDERS.id: [order(1), order(2, 2, b"2.25"), order(3, 2, b"100.00", b"late")],
            CUSTOMERS.id: [[b"1", b"Ann"], [b"2", b"Bo"]],
        }
    )
    return project


def test_what_is_in_the_log_is_seen_at_once(shop):
    sql = "select id, total, note from shop.public.orders order by id"
    first = [(1, Decimal("1.50"), None), (2, Decimal("2.25"), None), (3, Decimal("100.00"), "late")]
    assert shop.rows(sql) == first
    shop.gen.transaction(
        Insert(ORDERS.id, order(4)),
        Update(ORDERS.id, order(1), order(1, total=b"7.00")),
        Delete(ORDERS.id, order(2, 2, b"2.25")),
        Update(ORDERS.id, order(3, 2, b"100.00", b"late"), order(30, 2, b"100.00", b"late")),
    )
    result = shop.query(sql)
    assert result.rows == [
        (1, Decimal("7.00"), None),
        (4, Decimal("1.50"), None),
        (30, Decimal("100.00"), "late"),
    ]
    assert result.types == ("BIGINT", "DECIMAL(10,2)", "VARCHAR")
    assert result.as_of["shop"].position == shop.gen.position
    assert 0 <= result.as_of["shop"].age_s < 60


@pytest.mark.parametrize("ends", [True, False], ids=["with a note", "by search"])
def test_replica_and_tail(shop, ends):
    gen = shop.gen
    gen.transaction(*(Insert(ORDERS.id, order(i)) for i in range(100, 400)))
    for _ in range(5):
        gen.keepalive()
    shop.merge(ORDERS, ends=ends)
    gen.transaction(
        Insert(ORDERS.id, order(1000)),
        Delete(ORDERS.id, order(150)),
        Update(ORDERS.id, order(1), order(1, total=b"9.00")),
    )
    result = shop.query("select count(*), sum(total), max(id) from shop.public.orders")
    assert result.rows == [(303, Decimal("100.00") + 299 * Decimal("1.50") + Decimal("2.25")
                            + Decimal("9.00") + Decimal("1.50"), 1000)]  # fmt: skip
    # The 300 records before P were not read again.
    assert result.tail_records < 30


def test_many_tables_at_one_frontier(shop):
    shop.merge(CUSTOMERS)
    shop.gen.transaction(
        Insert(CUSTOMERS.id, [b"3", b"Cy"]),
        Insert(ORDERS.id, order(4, 3)),
    )
    sql = """
        with spent as (
            select customer_id, sum(total) as total, count(*) as orders
            from shop.public.orders group by all
        )
        select name, coalesce(orders, 0), total,
               rank() over (order by total desc nulls last),
               (select max(id) from shop.public.orders o where o.customer_id = c.id)
        from shop.public.customers c left join spent on customer_id = c.id
        union all
        select 'all', count(*), null, null, null from shop.public.orders
        order by 1
    """
    assert shop.rows(sql) == [
        ("Ann", 1, Decimal("1.50"), 2, 1),
        ("Bo", 2, Decimal("102.25"), 1, 3),
        ("Cy", 1, Decimal("1.50"), 2, 4),
        ("all", 4, None, None, None),
    ]


def test_every_type_is_exact_from_log_and_replica(project):
    schema = replace(all_types_schema(), table="all_types")
    row = all_types_row()
    empty = [text if name == "id" else None for name, text in zip(
        schema.column_names, row, strict=True)]  # fmt: skip
    empty[schema.column_names.index("id")] = b"8"
    project.gen.create([schema])
    project.gen.load({schema.id: [row, empty]})
    sql = "select * from shop.public.all_types order by id"
    from_log = project.query(sql)
    expected = [
        tuple(
            None if image[c.name] is None else codecs.from_json(c)(image[c.name])
            for c in schema.columns
        )
        for image in project.gen.rows[schema.id].values()
    ]
    assert from_log.columns == schema.column_names
    assert from_log.rows == expected
    project.merge(schema)
    from_replica = project.query(sql)
    assert from_replica.rows == expected
    assert from_replica.types == from_log.types
    assert from_replica.tail_records == 0
    project.gen.transaction(Update(schema.id, row, row))
    assert project.rows(sql) == expected
    # What Python gives to JSON has the envelope's forms.
    shown = dict(zip(schema.column_names, map(json_value, from_log.rows[0]), strict=True))
    assert shown["i8"] == 9223372036854775807
    assert shown["ts"] == "2013-01-01T05:00:00.120000"
    assert shown["tz"] == "2013-01-01T10:00:00.000000Z"
    assert shown["y"] == "AP8Q"


def test_unsent_columns_come_from_the_replica(shop):
    gen = shop.gen
    gen.transaction(Update(ORDERS.id, order(1), order(1, note=b"held")))
    shop.merge(ORDERS)
    held, unsent = order(1, note=b"held"), order(1, total=b"3.00", note=UNSENT)
    gen.transaction(Update(ORDERS.id, held, unsent))
    moved = [b"9", b"1", b"4.00", UNSENT]
    gen.transaction(Update(ORDERS.id, order(1, total=b"3.00", note=b"held"), moved))
    sql = "select id, total, note from shop.public.orders where id in (1, 9)"
    assert shop.rows(sql) == [(9, Decimal("4.00"), "held")]


def test_truncate_voids_replica_and_tail(shop):
    shop.merge(ORDERS)
    shop.gen.transaction(Insert(ORDERS.id, order(4)))
    shop.gen.transaction(Truncate(ORDERS.id), Insert(ORDERS.id, order(5)))
    assert shop.rows("select id from shop.public.orders") == [(5,)]
    assert shop.rows("select count(*) from shop.public.customers") == [(2,)]


def test_a_column_that_was_added_later(shop):
    shop.merge(ORDERS)
    wider = replace(ORDERS, version=2, columns=(*ORDERS.columns, column(5, "extra", codecs.TEXT)))
    shop.gen.alter(wider)
    shop.gen.transaction(Insert(ORDERS.id, [*order(4), b"new"]))
    result = shop.query("select * from shop.public.orders order by id")
    assert result.columns == ("id", "customer_id", "total", "note", "extra")
    assert [row[-1] for row in result.rows] == [None, None, None, "new"]


def test_odd_names_and_encoded_keys(project):
    schema = replace(
        table_schema(("a b", codecs.TEXT), ("Order", codecs.INT4), ("v", codecs.TEXT),
                     key=("a b", "Order")),
        schema="My Schema",
        table="Odd.Name",
    )  # fmt: skip
    project.gen.create([schema], partitions=2)
    project.gen.load({schema.id: [[b'x"y', b"1", b"one"], ["é".encode(), b"2", b"two"]]})
    sql = 'select "a b", "Order", v from shop."My Schema"."Odd.Name" order by 2'
    assert project.rows(sql) == [('x"y', 1, "one"), ("é", 2, "two")]
    project.merge(schema)
    project.gen.transaction(Delete(schema.id, [b'x"y', b"1", b"one"]))
    assert project.rows(sql) == [("é", 2, "two")]
    assert project.query('from shop."My Schema"."Odd.Name"').columns == ("a b", "Order", "v")


def test_columns_named_like_duckdbs_own(project):
    schema = table_schema(("id", codecs.INT4), ("file_row_number", codecs.INT8),
                          ("filename", codecs.TEXT), ("file_index", codecs.INT4))  # fmt: skip
    project.gen.create([schema])
    project.gen.load({schema.id: [[b"1", b"10", b"a", b"100"], [b"2", b"20", b"b", b"200"]]})
    project.merge(schema)
    project.gen.transaction(Delete(schema.id, [b"1", b"10", b"a", b"100"]))
    assert project.rows("from shop.public.orders") == [(2, 20, "b", 200)]


# --- States --------------------------------------------------------------------------------


def test_never_started(project):
    error = project.refused("select * from shop.public.orders")
    assert (error.code, error.exit_code, error.remedy) == ("not_started", 1, "cdc start")


def test_tables_that_are_loading(project):
    project.gen.create([ORDERS])
    error = project.refused("select * from shop.public.orders")
    assert error.code == "table_not_ready"
    assert "1 tables" in error.message
    assert error.remedy


def test_a_table_that_loads_again(shop):
    shop.gen.set_state(ORDERS.id, "Snapshotting")
    error = shop.refused("select * from shop.public.orders")
    assert (error.code, error.table) == ("table_not_ready", "shop.public.orders")
    assert "Snapshotting" in error.message
    assert shop.rows("select count(*) from shop.public.customers") == [(2,)]


@pytest.mark.parametrize("with_replica", [False, True])
def test_tables_that_are_not_ready_tell_how_far_they_are(shop, with_replica):
    if with_replica:
        shop.merge(ORDERS)
    gen, sql = shop.gen, "select count(*) from shop.public.orders"
    gen.set_state(ORDERS.id, ADDED, ready_from=None)
    gen.set_load(ORDERS.id, 1, state="intended")
    error = shop.refused(sql)
    assert (error.code, error.exit_code) == ("table_not_ready", 1)
    assert error.message == "the table is Added, load 1: it has not begun"
    gen.set_state(ORDERS.id, SNAPSHOTTING, ready_from=None)
    gen.set_load(ORDERS.id, 1, rows=1200, estimate=5000, chunks=13, done=((0, 1), (7, 7)))
    error = shop.refused(sql)
    assert error.message == (
        "the table is Snapshotting, load 1: "
        "1,200 of about 5,000 (24 %) rows, 3 of 13 chunks are copied"
    )
    gen.set_state(ORDERS.id, CATCHING_UP, ready_from=None)
    gen.set_load(ORDERS.id, 1, state="replaying", rows=5000, chunks=13, done=((0, 12),))
    done = shop.cli("query", sql, "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["result"] is None
    assert answer["error"]["table"] == "shop.public.orders"
    assert "CatchingUp, load 1: all 5,000 rows are copied" in answer["error"]["message"]
    assert "cdc status" in answer["error"]["remedy"]


def test_a_table_below_where_it_is_ready_from(shop):
    later = frontier(0, shop.gen.lsn + 0x1000)
    shop.gen.set_state(ORDERS.id, READY, ready_from=later)
    assert shop.refused("from shop.public.orders").code == "table_not_ready"
    shop.gen.keepalive(0x1000)
    assert shop.rows("select count(*) from shop.public.orders") == [(3,)]


def test_after_a_switch_the_newer_load_answers(shop):
    gen, sql = shop.gen, "select id, total from shop.public.orders order by id"
    shop.merge(ORDERS)
    before = [(1, Decimal("1.50")), (2, Decimal("2.25")), (3, Decimal("100.00"))]
    # Order 2 vanished without an event, order 3 differs, order 8 is new.
    gen.begin_load(ORDERS, [order(1), order(3, 2, b"3.00"), order(8)])
    assert shop.rows(sql) == before
    gen.transaction(Truncate(ORDERS.id), Insert(ORDERS.id, order(70)))
    assert shop.rows(sql) == [(70, Decimal("1.50"))]
    gen.switch(ORDERS.id)
    gen.transaction(Insert(ORDERS.id, order(9)), Delete(ORDERS.id, order(1)))
    after = [(3, Decimal("3.00")), (8, Decimal("1.50")), (9, Decimal("1.50"))]
    # The replica is still of the older load.
    result = shop.query(sql)
    assert result.rows == after
    assert result.as_of["shop"].position == gen.position
    joined = "select count(*) from shop.public.orders, shop.public.customers"
    assert shop.rows(joined) == [(6,)]
    shutil.rmtree(shop.lake)
    shop.merge(ORDERS)
    gen.transaction(Insert(ORDERS.id, order(10)))
    assert shop.rows(sql) == [*after, (10, Decimal("1.50"))]


def test_errored_tables_answer_only_when_asked(shop):
    good = shop.gen.position
    shop.gen.transaction(Insert(CUSTOMERS.id, [b"3", b"Cy"]), gap=64)
    state = {"reason": "column x was dropped", "remedy": "put it back", "last_good": good}
    state["ready_from"] = good
    shop.gen.set_state(ORDERS.id, ERRORED, **state)
    error = shop.refused("select count(*) from shop.public.orders")
    assert (error.code, error.table) == ("table_errored", "shop.public.orders")
    assert "column x was dropped" in error.message
    assert "put it back" in error.remedy and "--last-good" in error.remedy
    result = shop.query(
        "select (select count(*) from shop.public.orders), count(*) from shop.public.customers",
        last_good=True,
    )
    # The whole source is answered as of then, not only the table.
    assert result.rows == [(3, 2)]
    assert result.as_of["shop"].position == good
    assert result.as_of["shop"].last_good
    assert result.notes
    shop.gen.set_state(ORDERS.id, READY)
    assert not shop.query("from shop.public.orders").as_of["shop"].last_good


def test_a_replica_beyond_the_last_good_position(shop):
    good = shop.gen.position
    shop.gen.transaction(Insert(CUSTOMERS.id, [b"3", b"Cy"]), gap=64)
    shop.merge(CUSTOMERS)
    shop.gen.set_state(ORDERS.id, ERRORED, reason="r", remedy="m", last_good=good, ready_from=good)
    error = shop.refused("select 1 from shop.public.orders, shop.public.customers", last_good=True)
    assert (error.code, error.table) == ("replica_newer", "shop.public.customers")


def test_tables_of_the_configuration_that_were_never_captured(shop):
    error = shop.refused("select * from shop.public.all_types")
    assert (error.code, error.table) == ("table_not_captured", "shop.public.all_types")


def test_unknown_tables(shop):
    error = shop.refused("select * from shop.public.order")
    assert error.code == "table_unknown"
    assert "shop.public.orders" in error.remedy


# --- Logs and lakes that do not belong together ----------------------------------------------


def test_a_topic_that_was_created_again(shop):
    topic = shop.gen.tables[ORDERS.id].topic
    shop.gen.admin.delete_topics([topic])
    assert shop.refused("from shop.public.orders").code == "topic_recreated"


def test_a_replica_of_another_topic_is_not_used(shop):
    write_replica(
        shop.lake,
        "shop",
        ORDERS,
        {b'{"id":77}': {"id": 77}},
        shop.gen.position,
        "another-topic-id",
        ends={},
    )
    assert shop.rows("select id from shop.public.orders order by 1") == [(1,), (2,), (3,)]


def test_a_replica_of_another_epoch_is_not_used(shop):
    topic_id = shop.gen.tables[ORDERS.id].topic_id
    rows = {b'{"id":77}': {"id": 77}}
    write_replica(shop.lake, "shop", ORDERS, rows, frontier(7, 1), topic_id, ends={}, epoch=7)
    error = shop.refused("from shop.public.orders")
    assert error.code == "replica_ahead"


def test_a_replica_ahead_of_the_log(shop):
    topic_id = shop.gen.tables[ORDERS.id].topic_id
    ahead = frontier(0, shop.gen.lsn + 1)
    write_replica(shop.lake, "shop", ORDERS, {}, ahead, topic_id, ends={})
    error = shop.refused("from shop.public.orders")
    assert (error.code, error.table) == ("replica_ahead", None)
    assert "lake.path" in error.remedy


def test_a_replica_so_old_that_the_log_may_have_forgotten_deletes(shop):
    shop.merge(CUSTOMERS, age_days=30)
    sql = "select count(*) from shop.public.customers"
    assert shop.rows(sql) == [(2,)]
    # Nothing was written between the replica's position and what the log still tells of.
    shop.gen.transaction(Insert(CUSTOMERS.id, customer(3, b"Cy")))
    assert shop.rows(sql) == [(3,)]
    shop.merge(ORDERS, age_days=30, ends={})
    shop.gen.transaction(Insert(ORDERS.id, order(4)))
    error = shop.refused("from shop.public.orders")
    assert (error.code, error.table) == ("replica_too_old", "shop.public.orders")
    assert error.remedy == "cdc rebuild shop.public.orders --from-offset 0"


def test_a_replica_with_another_type(shop):
    topic_id = shop.gen.tables[ORDERS.id].topic_id
    other = table_schema(("id", codecs.INT4), ("customer_id", codecs.INT4))
    write_replica(shop.lake, "shop", other, {}, shop.gen.position, topic_id, ends={})
    error = shop.refused("from shop.public.orders")
    assert (error.code, error.table) == ("replica_type", "shop.public.orders")


def test_a_replica_whose_files_are_gone(shop):
    for file in Path(shop.merge(ORDERS)).glob("*.parquet"):
        file.unlink()
    error = shop.refused("from shop.public.orders")
    assert (error.code, error.table) == ("replica_unreadable", "shop.public.orders")


def test_values_that_no_type_of_ours_holds(project):
    schema = table_schema(("id", codecs.INT4), ("at", codecs.TIMESTAMP))
    project.gen.create([schema])
    project.gen.load({schema.id: [[b"1", b"infinity"]]})
    assert project.rows("from shop.public.orders") == [(1, dt.datetime.max)]  # noqa: DTZ901
    project.says("types: {timestamp: error}")
    error = project.refused("from shop.public.orders")
    assert (error.code, error.table) == ("value_out_of_range", "shop.public.orders")
    assert "column at" in error.message
    project.says("types: {timestamp: string}")
    assert project.rows("from shop.public.orders") == [(1, "infinity")]


# --- While the source goes on ----------------------------------------------------------------


def test_every_query_sees_whole_transactions(shop):
    """Transfers between two tables: the total never changes."""
    gen = shop.gen
    gen.transaction(
        Insert(ORDERS.id, order(500, total=b"500.00")), Insert(CUSTOMERS.id, [b"500", b"500"])
    )
    shop.merge(ORDERS)
    stop = threading.Event()
    done = []

    def transfer():
        left, right = 500, 500
        while not stop.is_set():
            old = order(500, total=b"%d.00" % left), customer(500, b"%d" % right)
            left, right = left - 1, right + 1
            new = order(500, total=b"%d.00" % left), customer(500, b"%d" % right)
            gen.transaction(Update(ORDERS.id, old[0], new[0]), Update(CUSTOMERS.id, old[1], new[1]))
            done.append(left)

    writer = threading.Thread(target=transfer)
    writer.start()
    try:
        seen = set()
        for _ in range(15):
            [(left, right)] = shop.rows(
                "select (select total::int from shop.public.orders where id = 500),"
                " (select name::int from shop.public.customers where id = 500)"
            )
            assert left + right == 1000
            seen.add(left)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1
    assert len(done) > 15


def test_a_long_tail_says_so(shop, monkeypatch):
    monkeypatch.setattr("cdc.query.run.LARGE_TAIL", 2)
    result = shop.query("select count(*) from shop.public.orders")
    assert "cdc query --wait" in result.notes[0]
    error = shop.refused("select count(*) from shop.public.orders", wait_s=0.5)
    assert error.code == "still_behind"
    shop.merge(ORDERS)
    assert shop.query("select count(*) from shop.public.orders", wait_s=5).notes == ()
    monkeypatch.setattr("cdc.query.run.LARGEST_TAIL", 1)
    assert shop.refused("from shop.public.customers").code == "too_far_behind"


# --- The command ---------------------------------------------------------------------------


def test_the_command_answers_in_three_forms(shop):
    shop.gen.transaction(Insert(ORDERS.id, order(4, note=b'a "b",\nc')))
    sql = "select id, total, note, id = 4 as four from shop.public.orders order by id;"
    done = shop.cli("query", "--json", sql)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"] and answer["command"] == "query"
    assert answer["result"]["rows"] == [
        [1, "1.50", None, False],
        [2, "2.25", None, False],
        [3, "100.00", "late", False],
        [4, "1.50", 'a "b",\nc', True],
    ]
    assert answer["result"]["columns"][1] == {"name": "total", "type": "DECIMAL(10,2)"}
    assert answer["result"]["as_of"]["shop"]["position"] == str(shop.gen.position)
    done = shop.cli("query", "--csv", sql)
    assert list(csv.reader(io.StringIO(done.stdout))) == [
        ["id", "total", "note", "four"],
        ["1", "1.50", "", "false"],
        ["2", "2.25", "", "false"],
        ["3", "100.00", "late", "false"],
        ["4", "1.50", 'a "b",\nc', "true"],
    ]
    assert "as of shop" in done.stderr
    done = shop.cli("query", sql)
    assert "100.00" in done.stdout and "4 rows, as of shop" in done.stdout
    assert r"a \"b\",\nc" not in done.stdout and r",\nc" in done.stdout


def test_the_command_says_what_is_wrong(shop):
    done = shop.cli("query", "drop table shop.public.orders")
    assert done.returncode == 1
    assert "single SELECT" in done.stderr
    done = shop.cli("query", "--json", "select * from shop.public.order")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "table_unknown"


def test_a_broker_that_is_down_is_the_environment(project, monkeypatch):
    monkeypatch.setattr("cdc.log.settings.COMMAND_REFUSED_AFTER", 0.5)
    path = project.folder / "cdc.yaml"
    path.write_text(path.read_text().replace(project.gen.bootstrap, "127.0.0.1:1"))
    error_config = load_config(path)
    with pytest.raises(CdcError) as error:
        run_query(error_config, "from shop.public.orders")
    assert (error.value.code, error.value.exit_code) == ("kafka_unreachable", 3)


def test_table_ids_are_the_configurations(project):
    assert TableId("My Schema", "Odd.Name") in project.config.sources["shop"].table_ids
