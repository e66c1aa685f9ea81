"""Values that Postgres stores out of line and does not send with an update that leaves them."""

import json
import threading
import time

import psycopg
import pytest

from cdc.fold import fold
from cdc.names import TableId
from connectors.postgres.reread import extend_xid
from tests.support.capturing import Capturing
from tests.support.standby import commits_held

DOCS = TableId("public", "docs")


@pytest.fixture
def docs(stack, database, topic_prefix):
    source = Capturing(stack.bootstrap, database, topic_prefix, ["docs"])
    source.execute(
        "create table docs (id int primary key, n int, body text)",
        "alter table docs alter body set storage external",
    )
    return source


def body(mark, size=4000):
    return mark * size


def updates(source):
    return [r for r in source.records("docs") if r.op in ("u", "c") and r.unchanged]


def folded(source):
    """Key to row of the log, by the platform's own fold."""
    view = source.frontier()
    rows = fold(source.records("docs"), view.position)
    return {json.loads(key)["id"]: o.row for key, o in rows.items() if o.row is not None}


def same(source):
    found = source.rows("select id, n, body from docs")
    return folded(source) == {id: {"id": id, "n": n, "body": body} for id, n, body in found}


def test_an_untouched_large_value_is_never_lost(docs):
    with docs.running():
        docs.wait_ready()
        docs.execute(
            f"insert into docs values (1, 0, '{body('a')}'), (2, 0, '{body('b')}'), (3, 0, null)",
            "update docs set n = 1 where id = 1",  # re-read
            "update docs set id = 20 where id = 2",  # a key change, re-read by the new key
        )
        # Within one transaction the value is known, also over a key change.
        docs.transaction(
            f"insert into docs values (4, 0, '{body('d')}')",
            "update docs set n = 1 where id = 4",
            "update docs set id = 40 where id = 4",
            "update docs set n = 2 where id = 40",
        )
        docs.caught_up()
        assert same(docs)
        named = updates(docs)
        assert [(json.loads(r.key)["id"], r.unchanged) for r in named] == [
            (1, ("body",)),
            (20, ("body",)),
        ]
        assert [(r.after or {}).get("body") for r in named] == [body("a"), body("b")]


def test_rows_with_keys_of_unusual_types_are_read_again(stack, database, topic_prefix):
    docs = Capturing(stack.bootstrap, database, topic_prefix, ["docs"])
    docs.execute(
        "create extension ltree",
        "create extension citext",
        "create type mood as enum ('do re', 'mi')",
        "create domain price as numeric(8,2) check (value > 0)",
        "create domain trail as ltree",
        'create table docs (l ltree, c citext, m mood, p price, "a b" int[], y bytea,'
        ' z timestamptz, f float8, b char(4), q "char", w inet, d trail, v varbit, n int,'
        ' body text, primary key (l, c, m, p, "a b", y, z, f, b, q, w, d, v))',
        "alter table docs alter body set storage external",
    )
    key = (
        "'Top.A', 'MiXed', 'do re', 1.5, '{1,NULL}', '\\x00ff', '0044-03-15 12:00:00+00 BC', '-0',"
        " 'ab', 'x', '192.0.2.7/25', 'X.Y', B'01'"
    )
    with docs.running():
        docs.wait_ready()
        docs.execute(f"insert into docs values ({key}, 0, '{body('a')}')", "update docs set n = 1")
        docs.caught_up()
    (update,) = updates(docs)
    assert (update.after or {}).get("body") == body("a")
    assert json.loads(update.key) == {
        "l": "Top.A", "c": "MiXed", "m": "do re", "p": "1.50", "a b": [1, None], "y": "AP8=",
        "z": "0044-03-15 12:00:00+00 BC", "f": -0.0, "b": "ab  ", "q": "x", "w": "192.0.2.7/25",
        "d": "X.Y", "v": "01",
    }  # fmt: skip


def test_under_full_identity_nothing_is_read_again(stack, database, topic_prefix):
    docs = Capturing(stack.bootstrap, database, topic_prefix, ["docs"])
    docs.execute(
        "create table docs (id int primary key, n int, body text)",
        "alter table docs alter body set storage external, replica identity full",
    )
    with docs.running():
        docs.wait_ready()
        docs.execute(
            f"insert into docs values (1, 0, '{body('a')}')",
            "update docs set n = 1",
            "update docs set id = 2",
        )
        docs.caught_up()
    assert updates(docs) == []
    assert same(docs)
    assert [(r.before or {}).get("body") for r in docs.records("docs")[1:3]] == [body("a")] * 2


def test_a_row_that_is_gone_leaves_the_value_out_and_named(docs):
    with docs.running():
        docs.wait_ready()
        docs.execute(f"insert into docs values (1, 0, '{body('a')}'), (2, 0, '{body('b')}')")
        docs.caught_up()
    docs.execute("update docs set n = 1 where id = 1", "delete from docs where id = 1")
    docs.execute(
        "update docs set n = 1 where id = 2", f"update docs set body = '{body('c')}' where id = 2"
    )
    with docs.running():
        docs.caught_up()
    gone, future = updates(docs)
    assert "body" not in gone.after and gone.unchanged == ("body",)
    # Re-read from the future, which ``unchanged`` tells.
    assert future.after["body"] == body("c") and future.unchanged == ("body",)
    assert same(docs)


def test_names_and_types_that_need_care(stack, database, topic_prefix):
    table = 'do"cs %s'
    docs = Capturing(stack.bootstrap, database, topic_prefix, [table])
    quoted = '"do""cs %s"'
    docs.execute(
        f'create table {quoted} (k1 char(5), "k 2%s" numeric(6,2), k3 timestamptz, there int,'
        ' "body%s" text, primary key (k3, k1, "k 2%s"))',
        f'alter table {quoted} alter "body%s" set storage external',
    )
    with docs.running():
        docs.wait_ready()
        docs.execute(
            f"insert into {quoted} values ('ab', 1.50, '2020-01-01 00:00:00.5+03', 1,"
            f" '{body('x')}'), ('ab', 1.51, '2020-01-01', 1, '{body('y')}')",
            f'update {quoted} set there = 2 where "k 2%s" = 1.5',
        )
        docs.caught_up()
    (record,) = [r for r in docs.records(table) if r.unchanged]
    assert record.after is not None
    assert (record.after["body%s"], record.after["there"]) == (body("x"), 2)


def test_a_commit_that_is_not_visible_yet_is_waited_for(docs):
    """The stream sees a commit that waits for a synchronous standby; a query does not."""
    with docs.running():
        docs.wait_ready()
        docs.execute(f"insert into docs values (1, 0, '{body('a')}'), (2, 0, '{body('b')}')")
        docs.caught_up()

        def change():
            # Committed in the WAL, and invisible for as long as no standby confirms.
            docs.transaction(
                f"update docs set body = '{body('z')}' where id = 1",
                "update docs set n = 7",
            )

        writer = threading.Thread(target=change)
        with commits_held(docs.conninfo) as commits:
            writer.start()
            docs.wait_until(commits.waiting, 10, "the commit to wait")
            time.sleep(1.0)
            assert docs.rows("select n from docs where id = 2") == [(0,)]
            # Capture has it, and waits instead of taking what it can see.
            assert len(docs.records("docs")) == 2
        writer.join(10)
        docs.caught_up()
        assert same(docs)
    (record,) = updates(docs)
    assert record.after == {"id": 2, "n": 7, "body": body("b")}


def test_a_new_column_whose_commit_is_not_visible_yet_is_waited_for(docs):
    """Many at once: in some, the stream is ahead of what a query of the catalog sees."""
    with docs.running():
        docs.wait_ready()
        for i in range(15):
            docs.transaction(
                f"alter table docs add c{i} int",
                f"insert into docs (id, c{i}) values ({i}, {i})",
            )
        docs.caught_up()
    assert sorted(docs.control().schemas[DOCS, 1]) == list(range(1, 17))
    assert {id: row[f"c{id}"] for id, row in folded(docs).items()} == {i: i for i in range(15)}


def test_a_locked_table_is_waited_for(docs):
    with docs.running():
        docs.wait_ready()
        docs.execute(f"insert into docs values (1, 0, '{body('a')}')")
        docs.caught_up()
        with psycopg.connect(**docs.conninfo) as holder:
            with docs.connect(autocommit=False) as writer:
                writer.execute("update docs set n = 1")
                # Queued behind the writer, and granted right at its commit.
                locker = threading.Thread(
                    target=lambda: holder.execute("lock table docs in access exclusive mode")
                )
                locker.start()
                time.sleep(0.3)
                writer.commit()
                locker.join(10)
            time.sleep(2.5)  # longer than capture's lock_timeout
            assert len(docs.records("docs")) == 1
            holder.rollback()
        docs.caught_up()
    assert same(docs)


def test_a_stop_does_not_wait_for_a_reread(docs):
    with docs.running():
        docs.wait_ready()
        docs.execute(f"insert into docs values (1, 0, '{body('a')}')")
        docs.caught_up()
        with docs.connect(autocommit=False) as holder:
            holder.execute("update docs set n = 1")
            locker = psycopg.connect(**docs.conninfo)
            thread = threading.Thread(
                target=lambda: locker.execute("lock table docs in access exclusive mode")
            )
            thread.start()
            time.sleep(0.3)
            holder.commit()
            thread.join(10)
        time.sleep(0.5)
        docs.stop()
        locker.close()
    with docs.running():
        docs.caught_up()
    assert same(docs)


def test_xids_are_extended_to_the_nearest():
    assert extend_xid(750, 751) == 750
    assert extend_xid(751, 751) == 751
    assert extend_xid(760, 751) == 760
    assert extend_xid(0xFFFF_FFF0, 0x1_0000_0005) == 0xFFFF_FFF0
    assert extend_xid(5, 0x0_FFFF_FFF0) == 0x1_0000_0005
    assert extend_xid(5, 0x3_0000_0010) == 0x3_0000_0005


def test_a_value_of_a_partitioned_table_is_read_through_it(stack, database, topic_prefix):
    docs = Capturing(stack.bootstrap, database, topic_prefix, ["docs"])
    docs.execute(
        "create table docs (id int primary key, n int, body text) partition by range (id)",
        "alter table docs alter body set storage external",
        "create table docs_1 partition of docs for values from (0) to (10)",
    )
    with docs.running():
        docs.wait_ready()
        docs.execute(
            f"insert into docs values (1, 0, '{body('a')}')", "update docs set n = 1 where id = 1"
        )
        docs.caught_up()
        assert same(docs)
        assert [r.after["body"] for r in updates(docs)] == [body("a")]
