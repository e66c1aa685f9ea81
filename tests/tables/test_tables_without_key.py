"""Tables of identity FULL without a key: their rows are counted, equal ones too."""

import pytest

from cdc.codecs import FLOAT8
from cdc.errors import SourceError
from cdc.log.admin import LogAdmin
from cdc.names import TableId
from cdc.states import ABANDONED, COPYING, DONE
from tests.support.capturing import Capturing, assert_log_is_source
from tests.support.gated import Gate

CLICKS = TableId("public", "clicks")
CREATE = (
    "create table clicks (n int, f float8, big text)",
    "alter table clicks alter big set storage external, replica identity full",
    "insert into clicks select i % 3, 0, null from generate_series(1, 9) i",
    "insert into clicks values (null, null, null), (null, null, null), (7, '-0', ''), (7, 0, '')",
    "insert into clicks values (8, 'NaN', repeat('large ', 2000)), (9, 1, 'a'), (9, 1, 'a')",
)
#: One of several equal rows, which only its place tells from the others.
ONE = "ctid = (select max(ctid) from clicks where n = {})"


@pytest.fixture
def clicks(stack, database, topic_prefix):
    gate = Gate()
    source = Capturing(
        stack.bootstrap, database, topic_prefix, ["clicks"], partitions=2, make_copier=gate
    )
    source.execute(*CREATE)
    return source


def delete_one(n):
    return f"delete from clicks where {ONE.format(n)}"


def change_one(n, change):
    return f"update clicks set {change} where {ONE.format(n)}"


def wait_copying(source):
    source.wait_until(lambda: source.frontier() is not None, 20, "the first frontier")

    def planned():
        loads = source.control().unfinished_loads()
        return loads and loads[0].state == COPYING and loads[0].chunks

    source.wait_until(planned, 20, "its plan")


def load(source, number):
    return source.control().loads[CLICKS, number]


def same(source):
    source.caught_up()
    assert_log_is_source(source, ["clicks"])


def test_a_load_counts_each_transaction_once(clicks):
    """Those that its snapshot sees, and those that it does not, whenever they commit."""
    gate = clicks.make_copier
    with clicks.running(), clicks.connect(False) as early, clicks.connect(False) as late:
        wait_copying(clicks)
        # In the spool, and seen.
        clicks.execute(delete_one(1), "insert into clicks values (1, 0, null), (5, 5, '5')")
        clicks.execute(change_one(9, "f = 2"), change_one(8, "f = f"))
        # Open at the snapshot, committed while the rows are read, and after them.
        early.execute(delete_one(2))
        early.execute("insert into clicks values (10, 0, 'early')")
        late.execute("insert into clicks values (11, 0, 'late')")
        late.execute(delete_one(7))

        def during(task, chunk):
            clicks.execute(delete_one(0), change_one(8, "n = 80"), change_one(9, "f = -0.0"))
            early.execute("insert into clicks values (10, 0, 'early')")
            early.commit()

        gate.during = during
        gate.open_to(1)
        clicks.wait_until(lambda: load(clicks, 1).snapshot, 20, "the copy")
        late.execute("insert into clicks select n, f, big from clicks where n is null")
        late.commit()
        clicks.execute(delete_one(80))
        clicks.wait_ready()
        same(clicks)
        assert load(clicks, 1).state == DONE
        assert gate.copied == [("clicks", 1, 0)]


def test_changes_truncates_and_a_restart(clicks):
    clicks.make_copier.open_to(1)
    with clicks.running():
        clicks.wait_ready()
        clicks.execute(
            delete_one(0),
            change_one(1, "f = -0.0"),
            "update clicks set n = n",
            "update clicks set f = 1 where n is null",
        )
        clicks.transaction(
            "insert into clicks values (1, 1, '1')",
            "update clicks set n = 2 where n = 1",
            "delete from clicks where n = 2",
            "insert into clicks select 1, 1, '1' from generate_series(1, 2000)",
            change_one(8, "n = 88"),
        )
        same(clicks)
        topic = clicks.record("clicks").topic
        info = LogAdmin(clicks.bootstrap).describe(topic)
        assert info.cleanup_policy == "delete" and info.configs["retention.ms"] == "-1"
    with clicks.running():
        clicks.execute("truncate clicks", *CREATE[2:])
        clicks.transaction("delete from clicks", "truncate clicks", CREATE[2])
        same(clicks)
        assert clicks.record("clicks").load == 1
        # Each change is one record, with a position of its own.
        records = clicks.records("clicks")
        assert len({record.position for record in records}) == len(records)
        assert {record.key for record in records} == {b"{}"}


def test_a_load_that_is_interrupted_begins_anew(clicks):
    gate = clicks.make_copier
    with clicks.running():
        wait_copying(clicks)
        first = load(clicks, 1)
        clicks.execute(delete_one(1))
    failures = [SourceError("load_interrupted", "gone")]

    def during(task, chunk):
        if failures:
            raise failures.pop()

    gate.during = during
    with clicks.running():
        clicks.wait_until(lambda: (CLICKS, 2) in clicks.control().loads, 20, "another load")
        clicks.execute(change_one(0, "n = 5"))
        gate.open_to(1)
        clicks.wait_ready()
        same(clicks)
        states = {n: load(clicks, n).state for n in (1, 2, 3)}
        assert states == {1: ABANDONED, 2: ABANDONED, 3: DONE}
        # That capture ended is not counted as a try.
        assert (load(clicks, 2).attempt, load(clicks, 3).attempt) == (0, 1)
        assert first.topic not in LogAdmin(clicks.bootstrap).topic_ids([first.topic])


def test_another_form_is_another_load(clicks):
    clicks.make_copier.open_to(1)
    with clicks.running():
        clicks.wait_ready()
        clicks.execute("alter table clicks add note text", "insert into clicks values (1, 2, '3')")
        clicks.wait_loaded("clicks", 2)
        clicks.execute(delete_one(1), "update clicks set note = 'x' where n = 2")
        same(clicks)
        # A key changes nothing while the whole old rows come.
        clicks.execute("alter table clicks add id int generated always as identity primary key")
        clicks.execute("update clicks set f = f + 1")
        clicks.wait_loaded("clicks", 3)
        same(clicks)
        assert clicks.control().newest_schema(CLICKS, 3).key == ("id",)


def test_floats_of_one_value_are_told_apart(clicks):
    """What Postgres takes for equal, and prints otherwise, are other rows to the log."""
    clicks.make_copier.open_to(1)
    with clicks.running():
        clicks.wait_ready()
        clicks.execute("delete from clicks where ctid = (select min(ctid) from clicks where n = 7)")
        same(clicks)
        schema = clicks.control().newest_schema(CLICKS, 1)
        assert schema.key == () and schema.columns[1].type_oid == FLOAT8
        (left,) = clicks.rows("select f::text from clicks where n = 7")
        assert left == ("0",)
