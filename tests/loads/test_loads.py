"""What happens at the source while a table is loaded: whatever it is, the log ends as the source.

One source with a table for each story. All tables are copied block by block in lockstep; the
stories' statements are run before the first chunk, between chunks, and after the last one.
"""

import contextlib
import dataclasses
import threading
import time

import pytest

from cdc.log.admin import LogAdmin
from cdc.log.topics import table_topic
from cdc.names import TableId
from cdc.states import ABANDONED, CATCHING_UP, DONE, READY, REMOVED, SNAPSHOTTING
from connectors.postgres.handover import Handover
from tests.support.asking import Asking
from tests.support.capturing import SOURCE, Capturing, assert_log_is_source
from tests.support.gated import Gate
from tests.support.standby import commits_held

ROWS = 40
CREATE = (
    "create table {t} (id int primary key, n int, big text, pad text)",
    "alter table {t} alter pad set storage plain, alter big set storage external",
    f"insert into {{t}} select i, i, null, repeat('p', 1000) from generate_series(1, {ROWS}) i",
)
BIG = "repeat('a long value ', 1000)"


@dataclasses.dataclass(frozen=True)
class Story:
    """Statements by their time, each a transaction of its own; a tuple is one transaction."""

    #: Before capture starts.
    at_first: tuple[str, ...] = ()
    before: tuple[str | tuple[str, ...], ...] = ()
    between: tuple[str | tuple[str, ...], ...] = ()
    after: tuple[str | tuple[str, ...], ...] = ()
    #: Loads that the table needs.
    loads: int = 1


STORIES = {
    "nothing": Story(),
    "updated": Story(
        before=("update {t} set n = -1 where id in (1, 39)",),
        between=("update {t} set n = -2 where id in (2, 38)",),
        after=("update {t} set n = -3 where id in (3, 37)",),
    ),
    "deleted": Story(
        before=("delete from {t} where id in (1, 39)",),
        between=("delete from {t} where id in (2, 38)",),
        after=("delete from {t} where id in (3, 37)",),
    ),
    "inserted_again": Story(
        before=("delete from {t} where id in (1, 39)",),
        between=(
            "insert into {t} values (1, 0, 'again', 'x'), (39, 0, 'again', 'x')",
            "delete from {t} where id in (2, 38)",
        ),
        after=("insert into {t} values (2, 0, 'again', 'x'), (38, 0, 'again', 'x')",),
    ),
    "in_one_transaction": Story(
        between=(
            (
                "delete from {t} where id in (1, 39)",
                "insert into {t} values (1, 5, 'again', 'x')",
                "update {t} set n = 6 where id = 1",
                "insert into {t} values (39, 7, 'again', 'x')",
                "delete from {t} where id = 39",
            ),
        ),
    ),
    "key_changed": Story(
        before=("update {t} set id = 101 where id = 1", "update {t} set id = 139 where id = 39"),
        between=("update {t} set id = 102 where id = 2", "update {t} set id = 138 where id = 38"),
        after=("update {t} set id = 1 where id = 101", "update {t} set id = 39 where id = 138"),
    ),
    # A row of the last blocks moves into the room that was made in the first ones, and back.
    "moved_between_chunks": Story(
        before=("delete from {t} where id < 10", "vacuum {t}"),
        between=(
            "update {t} set n = n + 100 where id > 30",
            "delete from {t} where id between 15 and 20",
            "vacuum {t}",
            "update {t} set n = n + 100 where id < 15",
        ),
        after=("update {t} set n = n + 100 where id > 35",),
    ),
    "unsent_values": Story(
        before=(
            f"update {{t}} set big = {BIG} where id in (1, 2, 38, 39)",
            "update {t} set n = -1 where id in (1, 39)",
        ),
        between=(
            "update {t} set n = -2 where id in (1, 2, 38, 39)",
            f"update {{t}} set big = 'B' || {BIG} where id in (2, 38)",
        ),
        after=(
            "update {t} set n = -3 where id in (1, 2, 38, 39)",
            "update {t} set id = id + 200 where id in (1, 39)",
            "update {t} set big = null where id = 2",
        ),
    ),
    # The row was in no chunk when it was updated without its large value.
    "unsent_value_of_a_row_that_no_chunk_has": Story(
        before=(f"update {{t}} set big = {BIG} where id = 39", "delete from {t} where id < 8"),
        between=("vacuum {t}", "update {t} set n = -1 where id = 39"),
        after=("update {t} set n = -2 where id = 39",),
    ),
    # No chunk has the row that had the key before; what it has under that key is another row.
    "unsent_value_of_a_key_that_another_row_takes": Story(
        at_first=(f"update {{t}} set big = {BIG} where id in (1, 2)",),
        before=(
            "update {t} set id = 201 where id = 1",
            "insert into {t} values (1, 0, 'another', 'x')",
        ),
        between=(
            "update {t} set id = 202 where id = 2",
            "insert into {t} values (2, 0, 'another', 'x')",
            "update {t} set id = 302 where id = 202",
            "insert into {t} values (202, 0, 'another', 'x')",
        ),
        after=("update {t} set n = -1 where id in (201, 302)",),
    ),
    "truncated_before": Story(
        before=("truncate {t}", "insert into {t} values (1, 1, 'new', 'x')"), loads=2
    ),
    "truncated_between": Story(
        between=("truncate {t}", "insert into {t} values (1, 1, 'new', 'x')"), loads=2
    ),
    "truncated_before_the_last_chunk": Story(
        between=("insert into {t} values (200, 1, 'old', 'x')",),
        after=("truncate {t}", "insert into {t} values (1, 1, 'new', 'x')"),
        loads=2,
    ),
    "vacuum_full": Story(
        before=("delete from {t} where id % 2 = 0",),
        between=("vacuum full {t}", "update {t} set n = -1 where id = 1"),
        loads=2,
    ),
    "clustered": Story(between=("cluster {t} using {t}_pkey",), loads=2),
    "rewritten": Story(between=("alter table {t} alter n type bigint",), loads=2),
    "volatile_default": Story(
        between=(
            "alter table {t} add v double precision default random()",
            "update {t} set n = -1 where id = 1",
        ),
        loads=2,
    ),
    "constant_default": Story(
        between=(
            "alter table {t} add v int default 7",
            "insert into {t} (id, n) values (300, 1)",
        ),
        loads=2,
    ),
    "column_added": Story(
        between=("alter table {t} add v int", "update {t} set v = 1 where id in (1, 39)"),
        after=("update {t} set v = 2 where id in (2, 38)",),
    ),
    "column_dropped": Story(
        between=("alter table {t} drop n", "update {t} set big = 'x' where id = 1"), loads=2
    ),
    "key_altered": Story(
        between=(
            (
                "alter table {t} drop constraint {t}_pkey",
                "alter table {t} alter n set not null",
                "alter table {t} add primary key (id, n)",
            ),
            "update {t} set n = 77 where id = 5",
        ),
        loads=2,
    ),
}


def run(source, statements, table):
    for statement in statements:
        if isinstance(statement, tuple):
            source.transaction(*(part.format(t=table) for part in statement))
        else:
            source.execute(statement.format(t=table))


@pytest.fixture
def loading(stack, database, topic_prefix):
    """A source with a gate, not yet started."""

    def make(tables, **options):
        gate = Gate()
        source = Capturing(
            stack.bootstrap, database, topic_prefix, tables, make_copier=gate, **options
        )
        for table in tables:
            source.execute(*(statement.format(t=table) for statement in CREATE))
        return source, gate

    return make


def loads_of(control, table):
    """Loads of a table by their number."""
    id = TableId("public", table)
    return {n: record for (of, n), record in sorted(control.loads.items()) if of == id}


def wait_copied(source, tables, count):
    """Until of each table's newest load so many chunks, or all, are marked."""

    def copied():
        if source.frontier() is None:
            return False
        control = source.control()
        for table in tables:
            record = list(loads_of(control, table).values())[-1]
            done = sum(last - first + 1 for first, last in record.done)
            if record.state != DONE and (not record.chunks or done < min(count, record.chunks)):
                return False
        return True

    source.wait_until(copied, 60, f"{count} chunks of each table")


def assert_told(source, stories):
    """The log is the source, and each table took the loads that its story needs."""
    assert_log_is_source(source, stories)
    control = source.control()
    for table, story in stories.items():
        states = [record.state for record in loads_of(control, table).values()]
        assert states == [ABANDONED] * (story.loads - 1) + [DONE], table


def test_whatever_happens_while_a_table_is_loaded(loading):
    source, gate = loading(list(STORIES))
    for table, story in STORIES.items():
        run(source, story.at_first, table)
    with source.running():
        wait_copied(source, STORIES, 0)
        for table, story in STORIES.items():
            run(source, story.before, table)
        gate.open_to(2)
        wait_copied(source, STORIES, 2)
        for table, story in STORIES.items():
            run(source, story.between, table)
        # All but the last block.
        gate.open_to(5)
        wait_copied(source, STORIES, 5)
        for table, story in STORIES.items():
            run(source, story.after, table)
        gate.open_to(10_000)
        source.wait_ready(90)
        source.caught_up()
        assert_told(source, STORIES)
        # Directly routed from here on.
        for table in STORIES:
            source.execute(
                f"update {table} set pad = 'later' where id = (select min(id) from {table})"
            )
        source.caught_up()
        assert_log_is_source(source, STORIES)
    assert all(record.state == READY for record in source.control().tables.values())


def test_a_label_that_is_renamed_while_a_table_is_loaded(loading, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source, gate = loading(["a"])
    source.execute("create type mood as enum ('sad')", "alter table a add m mood default 'sad'")
    with source.running():
        wait_copied(source, ["a"], 0)
        gate.open_to(2)
        wait_copied(source, ["a"], 2)
        source.execute("alter type mood rename value 'sad' to 'blue'")
        gate.open_to(10_000)
        source.wait_loaded("a", 2)
        source.caught_up()
        assert_log_is_source(source, ["a"])


@pytest.fixture
def asking():
    with contextlib.ExitStack() as stack:
        yield lambda source: stack.enter_context(contextlib.closing(Asking(source)))


def test_a_table_is_loaded_anew_while_it_is_served(loading, asking):
    source, gate = loading(["a", "b"])
    daemon = asking(source)
    gate.open_to(10_000)
    with source.running():
        source.wait_ready(60)
        before = source.control().tables[TableId("public", "a")]
        gate.open_to(2)
        daemon.ask("one", "a")
        daemon.ask("two", "a")
        refused = daemon.answer(source, "two")
        assert refused["error"]["code"] == "load_under_way"
        wait_copied(source, ["a"], 2)
        # Served as before, and new events go to both topics.
        source.execute("update a set n = -1 where id in (1, 39)", "delete from a where id = 20")
        source.caught_up()
        during = source.control()
        assert during.tables[TableId("public", "a")] == before
        assert list(loads_of(during, "a")) == [1, 2]
        assert_log_is_source(source, ["a", "b"])
        gate.open_to(10_000)
        assert daemon.answer(source, "one")["result"] == {"loads": {f"{SOURCE}.public.a": 2}}
        control = source.control()
        after = control.tables[TableId("public", "a")]
        assert (after.state, after.load) == (READY, 2)
        assert after.topic != before.topic
        assert after.ready_from > before.ready_from
        source.execute("update a set n = -2 where id = 2", "update b set n = -2 where id = 2")
        source.caught_up()
        assert_log_is_source(source, ["a", "b"])
        assert len(loads_of(source.control(), "b")) == 1


#: After the last chunk, while the spool is not yet replayed.
LATE = {
    "late_nothing": Story(),
    "late_truncate": Story(
        before=(
            "update {t} set n = -1 where id = 1",
            "insert into {t} values (200, 1, 'old', 'x')",
        ),
        after=("truncate {t}", "insert into {t} values (1, 1, 'new', 'x'), (300, 1, 'new', 'x')"),
    ),
    "late_truncate_in_a_transaction": Story(
        after=(
            (
                "insert into {t} values (200, 1, 'old', 'x')",
                "truncate {t}",
                "insert into {t} values (2, 2, 'new', 'x')",
            ),
        ),
    ),
    "late_column": Story(
        after=(
            "alter table {t} add v int",
            "update {t} set v = 1 where id in (1, 39)",
            "insert into {t} (id, v) values (300, 3)",
        ),
    ),
    "late_rewrite": Story(after=("vacuum full {t}", "update {t} set n = -1 where id = 1")),
    "late_volatile_default": Story(
        after=(
            "alter table {t} add v double precision default random()",
            "update {t} set n = -1 where id = 1",
        ),
        loads=2,
    ),
    "late_rename_of_a_column": Story(
        after=("alter table {t} rename n to m", "update {t} set m = -1 where id = 1"), loads=2
    ),
    "late_unsent_value": Story(
        before=(f"update {{t}} set big = {BIG} where id in (1, 39)",),
        after=(
            "update {t} set n = -1 where id in (1, 39)",
            f"update {{t}} set big = 'B' || {BIG} where id = 39",
            "delete from {t} where id = 1",
        ),
    ),
    # When the replay re-reads the large value of a key that was changed before the first chunk,
    # another row has that key; what it finds there is nothing to take over at the next change.
    "late_unsent_value_of_a_key_that_another_row_takes": Story(
        before=(
            f"update {{t}} set big = {BIG} where id in (3, 38)",
            "update {t} set id = id + 200 where id in (3, 38)",
        ),
        after=(
            "update {t} set id = id + 100 where id in (203, 238)",
            "insert into {t} values (203, 0, 'another', 'x'), (238, 0, 'another', 'x')",
        ),
    ),
}


def test_whatever_happens_after_the_last_chunk(loading, monkeypatch):
    source, gate = loading(list(LATE))
    may_replay = threading.Event()
    replay = Handover.replay
    monkeypatch.setattr(
        Handover,
        "replay",
        lambda self, load, until: may_replay.is_set() and replay(self, load, until),
    )
    with source.running():
        wait_copied(source, LATE, 0)
        for table, story in LATE.items():
            run(source, story.before, table)
        gate.open_to(10_000)
        wait_copied(source, LATE, 10_000)
        for table in LATE:
            wait_state(source, table, CATCHING_UP)
            run(source, LATE[table].after, table)
        source.caught_up()
        may_replay.set()
        source.wait_ready(60)
        source.caught_up()
        assert_told(source, LATE)


def test_events_around_the_hand_over_are_in_the_log_once(loading, monkeypatch):
    source, gate = loading(["a"])
    hand_over = Handover.hand_over
    written = []

    def write(self, loads):
        # In the server's WAL, and neither in the spool nor routed: capture does not read now.
        source.execute("update a set n = -1 where id = 1", "insert into a values (100, 1)")
        written.append(len(loads))
        hand_over(self, loads)
        source.execute("update a set n = -2 where id = 2", "delete from a where id = 100")

    monkeypatch.setattr(Handover, "hand_over", write)
    gate.open_to(10_000)
    with source.running():
        source.wait_ready(60)
        source.caught_up()
        assert_log_is_source(source, ["a"])
        changes = [record.op for record in source.records("a") if record.op != "r"]
    assert written == [1]
    assert changes == ["u", "c", "u", "d", "tombstone"]


def test_a_commit_that_is_decoded_before_it_is_visible_is_waited_for(loading):
    """As with synchronous replication: committed in the WAL, and held back from queries."""
    source, gate = loading(["a", "b"])
    with source.running(dataclasses.replace(source.settings, tables=source.settings.tables[:1])):
        gate.open_to(10_000)
        source.wait_ready(60)
    # Capture's own commits shall not wait.
    source.execute(f"alter database {source.settings.database} set synchronous_commit = local")
    statements = ("set synchronous_commit = on", "update b set n = -1 where id in (1, 39)")
    held = threading.Thread(target=source.execute, args=statements, daemon=True)
    with commits_held(source.conninfo) as commits:
        held.start()
        source.wait_until(commits.waiting, 20, "the commit to wait")
        with source.running():
            wait_state(source, "b", SNAPSHOTTING)
            time.sleep(1.5)
            assert not [chunk for chunk in gate.copied if chunk[0] == "b"]
            assert source.rows("select n from b where id = 1") == [(1,)]
            commits.release()
            held.join(20)
            source.wait_ready(60)
            source.caught_up()
            assert_log_is_source(source, ["a", "b"])


def test_tables_come_and_go_with_the_configuration(loading):
    source, gate = loading(["a", "b", "c"])
    all_tables, two = source.settings.tables, source.settings.tables[:2]
    gate.open_to(10_000)
    with source.running(dataclasses.replace(source.settings, tables=two)):
        source.wait_ready(60)
        assert set(source.control().tables) == set(two)
    # One that is open and one that is prepared have changed the new table before it is published.
    with source.connect(autocommit=False) as open_one:
        open_one.execute("update c set n = -1 where id = 1")
        with source.connect(autocommit=False) as prepared:
            prepared.execute("update c set n = -2 where id = 2")
            prepared.execute("prepare transaction 'waits'")
        with source.running():
            wait_state(source, "c", SNAPSHOTTING)
            source.execute("update c set n = -3 where id = 3", "update a set n = -3 where id = 3")
            source.caught_up()
            assert_log_is_source(source, ["a", "b"])
            open_one.execute("update c set n = -4 where id = 4")
            open_one.commit()
            time.sleep(1)
            assert not [chunk for chunk in gate.copied if chunk[0] == "c"]
            source.execute("commit prepared 'waits'")
            source.wait_ready(60)
            source.caught_up()
            assert_log_is_source(source, ["a", "b", "c"])
            last = source.frontier().position
    # The first is gone, and comes back after changes that nobody captured.
    with source.running(dataclasses.replace(source.settings, tables=all_tables[1:])):
        wait_state(source, "a", REMOVED)
        source.execute("update a set n = -5 where id = 5", "delete from a where id = 6")
        source.execute("update b set n = -5 where id = 5")
        source.caught_up()
        record = source.control().tables[TableId("public", "a")]
        assert record.last_good is not None and record.last_good >= last
        published = source.rows("select tablename::text from pg_publication_tables")
        assert sorted(name for (name,) in published) == ["b", "c"]
    with source.running():
        source.wait_until(
            lambda: source.control().tables[TableId("public", "a")].load == 2, 60, "the next load"
        )
        source.wait_ready(60)
        source.caught_up()
        assert_log_is_source(source, ["a", "b", "c"])
        assert [load.state for load in loads_of(source.control(), "a").values()] == [DONE, DONE]


def wait_state(source, table, state):
    source.wait_until(
        lambda: (
            (record := source.control().tables.get(TableId("public", table))) is not None
            and record.state == state
        ),
        60,
        f"{table} to be {state}",
    )


def test_tables_come_and_go_without_a_restart(stack, topic_prefix, loading, asking):
    source, gate = loading(["a", "b", "c"])
    daemon = asking(source)
    gate.open_to(10_000)
    with source.running(dataclasses.replace(source.settings, tables=source.settings.tables[:2])):
        source.wait_ready(60)
        daemon.ask("unknown", "a", "b", "nothing", verb="tables")
        assert daemon.answer(source, "unknown")["error"]["code"] == "table_missing"
        # Also what is refused late leaves everything as it is.
        taken = f"{topic_prefix}{SOURCE}.public.c"
        LogAdmin(stack.bootstrap).create_topics(
            [table_topic(taken, partitions=1, replication_factor=1, history_ms=1000)]
        )
        daemon.ask("taken", "a", "b", "c", verb="tables")
        assert daemon.answer(source, "taken")["error"]["code"] == "topic_exists"
        published = "select tablename::text from pg_publication_tables order by 1"
        assert source.rows(published) == [("a",), ("b",)]
        LogAdmin(stack.bootstrap).delete_topics([taken])
        daemon.ask("three", "a", "b", "c", verb="tables")
        names = [f"{SOURCE}.public.{table}" for table in "abc"]
        assert daemon.answer(source, "three")["result"] == {"tables": names, "set_aside": {}}
        source.execute(*(f"update {table} set n = -1 where id = 1" for table in "abc"))
        source.wait_ready(60)
        source.caught_up()
        assert_log_is_source(source, ["a", "b", "c"])
        gate.open_to(2)
        # One leaves while it is loaded.
        daemon.ask("again", "a")
        source.wait_until(lambda: 2 in loads_of(source.control(), "a"), 60, "the second load")
        wait_copied(source, ["a"], 2)
        daemon.ask("two", "b", "c", verb="tables")
        assert daemon.answer(source, "two")["result"]["tables"] == names[1:]
        wait_state(source, "a", REMOVED)
        gate.open_to(10_000)
        source.execute(*(f"update {table} set n = -2 where id = 2" for table in "abc"))
        source.caught_up()
        assert_log_is_source(source, ["b", "c"])
        published = source.rows("select tablename::text from pg_publication_tables")
        assert sorted(name for (name,) in published) == ["b", "c"]
        loads = loads_of(source.control(), "a")
        assert [load.state for load in loads.values()] == [DONE, ABANDONED]
        assert daemon.answer(source, "again")["error"]["code"] == "table_removed"


def test_a_load_is_paused_resumed_and_cancelled(loading, asking):
    source, gate = loading(["a", "b"])
    daemon = asking(source)
    gate.open_to(2)
    with source.running():
        wait_copied(source, ["a", "b"], 2)
        daemon.ask("pause", "a", verb="pause")
        assert daemon.answer(source, "pause")["state"] == "done"
        gate.open_to(10_000)
        wait_state(source, "b", READY)
        source.execute("update a set n = -1 where id in (1, 39)")
        source.caught_up()
        assert source.control().tables[TableId("public", "a")].state == SNAPSHOTTING
        daemon.ask("first", "a", verb="cancel")
        assert daemon.answer(source, "first")["error"]["code"] == "first_load"
    # Also after a restart.
    with source.running():
        wait_state(source, "b", READY)
        time.sleep(1)
        record = source.control().tables[TableId("public", "a")]
        assert record.state == SNAPSHOTTING
        daemon = asking(source)
    with source.running():
        daemon.ask("resume", "a", verb="resume")
        assert daemon.answer(source, "resume")["state"] == "done"
        source.wait_ready(60)
        gate.open_to(1)
        before = source.control().tables[TableId("public", "b")]
        daemon.ask("again", "b")
        source.wait_until(lambda: 2 in loads_of(source.control(), "b"), 60, "the second load")
        daemon.ask("cancel", "b", verb="cancel")
        assert daemon.answer(source, "again")["error"]["code"] == "load_cancelled"
        daemon.ask("none", "b", verb="cancel")
        assert daemon.answer(source, "none")["error"]["code"] == "no_load"
        source.execute("update b set n = -2 where id = 2")
        source.caught_up()
        assert source.control().tables[TableId("public", "b")] == before
        assert_log_is_source(source, ["a", "b"])
        assert [load.state for load in loads_of(source.control(), "b").values()] == [
            DONE,
            ABANDONED,
        ]
