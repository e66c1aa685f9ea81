"""Routing of changes: positions, TOAST values, schema versions, and what stops the source."""

import dataclasses
import json
from typing import Any

import pytest

from cdc import codecs
from cdc.envelope import parse_record
from cdc.errors import LogError, ProtocolViolation, SourceStopped
from cdc.log.partition import partition_of
from cdc.names import TableId
from cdc.schema_policy import SchemaPolicies
from cdc.unsent import UNSENT
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.drift import CatalogColumn
from connectors.postgres.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Relation,
    RelationColumn,
    Truncate,
    Update,
)
from connectors.postgres.router import Router
from connectors.postgres.routes import RoutedTable
from connectors.postgres.toast import RowCache
from tests.support.pgoutput_encoder import encode, keepalive, xlog_data
from tests.support.schemas import table_schema

RELID, OTHER = 16385, 99
BIG = b"v" * 2000
SCHEMA = table_schema(("id", codecs.INT4), ("big", codecs.TEXT), ("n", codecs.INT4), lsn=1)
RELATION = Relation(
    RELID,
    "public",
    "orders",
    "d",
    (
        RelationColumn("id", codecs.INT4, -1, True),
        RelationColumn("big", codecs.TEXT, -1, False),
        RelationColumn("n", codecs.INT4, -1, False),
    ),
)
SETTINGS = CaptureSettings(
    "p", "shop", "shop", {}, "", {}, "", 4, 1, 1, "s", "p", True, (SCHEMA.id,), 1, "0"
)  # fmt: skip


class FakeSource:
    """Answers what the test put in; records what was asked."""

    def __init__(self):
        self.catalog = {}
        self.values = {}
        self.asked = []
        self.calls = 0
        self.invisible: set[int] = set()

    def columns(self, schema, names, xid):
        return {name: self.catalog[name] for name in names if name in self.catalog}

    def reread(self, schema, columns, wanted):
        self.calls += 1
        self.asked += [(w.key, w.xid, tuple(columns)) for w in wanted]
        answers = [None if w.xid in self.invisible else dict(self.values) for w in wanted]
        self.invisible = set()  # until the next time
        return answers


class Setup:
    def __init__(self, schema=SCHEMA, relation=RELATION, partitions=4):
        self.source = FakeSource()
        self.sent: list[Any] = []
        self.refuse_all = False
        self.router = Router(
            SETTINGS,
            0,
            {schema.id: RoutedTable(schema, "t", partitions)},
            lambda *record: self.sent.append(record),
            self.send_all,
            self.source,
        )
        self.router.relation(relation, encode(relation))
        self.begin(1000)

    def send_all(self, topic, partitions, keys, values, headers):
        if self.refuse_all:
            return False
        for record in zip(partitions, keys, values, headers, strict=True):
            self.sent.append((topic, *record))
        return True

    def begin(self, lsn, xid=7):
        self.router.begin(Begin(lsn, 1_000_000, xid))

    def change(self, event, size=5000, index=0):
        """Route a change; the records it became, parsed."""
        before = len(self.sent)
        self.router.change(event, size, index)
        return [parse_record(t, p, 0, k, v, h) for t, p, k, v, h in self.sent[before:]]


@pytest.fixture
def at():
    return Setup()


def insert(id, big=b"x", n=b"1"):
    return Insert(RELID, (b"%d" % id, big, n))


def update(id, big=UNSENT, n=b"2", old_kind="", old=None):
    return Update(RELID, old_kind, old, (b"%d" % id, big, n))


def test_ordinals_count_every_change_of_the_transaction(at):
    at.router.relation(Relation(OTHER, "public", "elsewhere", "d", RELATION.columns), b"R")
    (first,) = at.change(insert(1))
    assert at.change(Insert(OTHER, (b"1", b"x", b"1"))) == []
    at.router.truncate(Truncate((OTHER,), False, False))
    (second,) = at.change(insert(2))
    assert first.position == (0, 1000, 1)
    assert second.position == (0, 1000, 4)
    at.router.commit()
    at.begin(2000)
    (third,) = at.change(insert(3))
    assert third.position == (0, 2000, 1)


def test_records_go_to_the_partition_of_their_key(at):
    for id in range(20):
        at.change(insert(id))
    for topic, partition, key, _, _ in at.sent:
        assert (topic, partition) == ("t", partition_of(key, 4))
    assert len({partition for _, partition, *_ in at.sent}) == 4


def test_a_delete_is_followed_by_its_tombstone(at):
    records = at.change(Delete(RELID, "K", (b"1", None, None)))
    assert [r.op for r in records] == ["d", "tombstone"]


def test_a_key_change_is_delete_tombstone_and_create_of_one_position(at):
    records = at.change(update(2, b"x", b"1", "K", (b"1", None, None)))
    assert [r.op for r in records] == ["d", "tombstone", "c"]
    assert len({r.position for r in records}) == 1
    assert records[0].new_key == b'{"id":2}'
    assert records[2].old_key == b'{"id":1}'


def test_truncate_is_a_control_record_with_its_position(at):
    at.change(insert(1))
    at.router.truncate(Truncate((RELID,), True, False))
    ((key, value),) = at.router.take_control()
    assert json.loads(key) == ["truncate", "public", "orders", 1, "0000-00000000000003E8-00000002"]
    assert json.loads(value)["cascade"] is True
    assert at.router.take_control() == []


# --- unsent TOAST values ---


def test_an_unsent_value_comes_from_the_old_tuple(at):
    (record,) = at.change(update(1, UNSENT, b"2", "O", (b"1", BIG, b"1")))
    assert record.after["big"] == BIG.decode()
    assert record.unchanged == ()
    assert at.source.asked == []


def test_an_unsent_value_comes_from_the_same_transaction(at):
    at.change(insert(1, BIG))
    at.change(update(1))
    (record,) = at.change(update(1, n=b"3"))
    assert (record.after["big"], record.after["n"]) == (BIG.decode(), 3)
    assert record.unchanged == ()
    assert at.source.asked == []


def test_also_after_the_key_has_changed(at):
    at.change(insert(1, BIG))
    *_, created = at.change(update(2, old_kind="K", old=(b"1", None, None)))
    (record,) = at.change(update(2, n=b"3"))
    assert created.after["big"] == record.after["big"] == BIG.decode()
    assert at.source.asked == []


def test_another_row_that_took_the_old_key_has_its_own_value(at):
    at.change(insert(1, BIG))
    at.change(update(2, old_kind="K", old=(b"1", None, None)))
    at.source.values = {1: b"reread"}
    (record,) = at.change(update(1))
    assert record.after["big"] == "reread"
    assert record.unchanged == ("big",)


@pytest.mark.parametrize("end", ["delete", "truncate", "commit"])
def test_what_has_ended_is_not_reused(at, end):
    at.change(insert(1, BIG))
    if end == "delete":
        at.change(Delete(RELID, "K", (b"1", None, None)))
    elif end == "truncate":
        at.router.truncate(Truncate((RELID,), False, False))
    else:
        at.router.commit()
        at.begin(2000)
    at.source.values = {1: b"reread"}
    (record,) = at.change(update(1))
    assert record.after["big"] == "reread"
    assert record.unchanged == ("big",)


def test_a_small_new_value_replaces_a_large_one_that_is_kept(at):
    at.change(insert(1, BIG))
    at.change(update(1, b"small"), size=50)
    at.source.values = {1: b"small"}
    (record,) = at.change(update(1))
    assert record.after["big"] == "small"


def test_a_reread_value_is_used_and_named(at):
    at.source.values = {1: b"reread"}
    (record,) = at.change(update(5))
    assert at.source.asked == [(("5",), 7, (1,))]
    assert record.after == {"id": 5, "big": "reread", "n": 2}
    assert record.unchanged == ("big",)


def test_a_reread_value_does_not_pass_for_an_exact_one(at):
    at.source.values = {1: BIG}
    at.change(update(5))
    (record,) = at.change(update(5, n=b"3"))
    assert record.unchanged == ("big",)
    assert len(at.source.asked) == 2


def test_a_row_that_is_gone_leaves_the_column_out(at):
    (record,) = at.change(update(5))
    assert record.after == {"id": 5, "n": 2}
    assert record.unchanged == ("big",)


def test_a_reread_null_is_a_value(at):
    at.source.values = {1: None}
    (record,) = at.change(update(5))
    assert record.after["big"] is None


def play(at, *messages):
    """Route a batch as the stream does; the records of its updates."""
    at.router.take([keepalive(1)] + [xlog_data(encode(m)) for m in messages])
    records = []
    for index, message in enumerate(messages, 1):
        if isinstance(message, Begin):
            at.router.begin(message)
        elif isinstance(message, Commit):
            at.router.commit()
        elif isinstance(message, Relation):
            at.router.relation(message, b"R")
        else:
            records += at.change(message, index=index)
    return records


def test_one_query_rereads_for_later_updates_of_the_batch_too(at):
    at.source.values = {1: b"reread"}
    second = (Commit(1000, 1010, 1), Begin(1010, 1, 8), insert(3), update(2), update(1, n=b"3"))
    records = play(at, update(1), *second)
    assert at.source.calls == 1
    assert at.source.asked == [(("1",), 7, (1,)), (("2",), 8, (1,)), (("1",), 8, (1,))]
    rows = [(r.after["id"], r.after["big"], r.unchanged) for r in records if r.op == "u"]
    assert rows == [(id, "reread", ("big",)) for id in (1, 2, 1)]


def test_what_was_not_visible_on_the_way_is_asked_for_again(at):
    at.source.values = {1: b"reread"}
    at.source.invisible = {8}
    records = play(at, update(1), Commit(1000, 1010, 1), Begin(1010, 1, 8), update(2))
    assert at.source.asked == [(("1",), 7, (1,)), (("2",), 8, (1,)), (("2",), 8, (1,))]
    assert [r.after["big"] for r in records] == ["reread", "reread"]


def test_looking_ahead_ends_at_another_schema_and_at_values_that_need_no_query(at):
    at.source.values = {1: b"reread"}
    full = update(5, old_kind="O", old=(b"5", BIG, b"1"))
    play(at, update(1), full, update(6, b"sent"), update(2), RELATION, update(3))
    assert [key for key, *_ in at.source.asked] == [("1",), ("2",), ("3",)]
    assert at.source.calls == 2


def test_large_values_are_reread_few_at_a_time(at, monkeypatch):
    monkeypatch.setattr("connectors.postgres.readahead._BYTES", 5000)
    at.source.values = {1: BIG}
    play(at, *(update(id) for id in range(40)))
    assert at.source.calls > 15


def test_many_small_ones_take_few_queries(at):
    at.source.values = {1: b"small"}
    play(at, *(update(id) for id in range(1000)))
    assert at.source.calls < 12
    assert len(at.source.asked) == 1000


def test_the_cache_is_bounded_and_forgets_the_oldest():
    cache = RowCache(limit=5000)
    for key in (b"a", b"b", b"c"):
        cache.put(1, key, (key, BIG))
    assert cache.fill(1, b"a", (b"a", UNSENT), (1,)) == ((b"a", UNSENT), (1,))
    assert cache.fill(1, b"c", (b"c", UNSENT), (1,)) == ([b"c", BIG], ())
    cache.put(1, b"huge", (b"x" * 6000,))
    assert cache.fill(1, b"huge", (UNSENT,), (0,))[1] == (0,)
    cache.forget(1, b"b")
    cache.forget(1, b"c")
    assert not cache.rows


# --- schema versions ---


def with_note():
    return Relation(
        RELID, "public", "orders", "d",
        (*RELATION.columns, RelationColumn("note", codecs.TEXT, -1, False)),
    )  # fmt: skip


def test_an_added_column_makes_a_version_with_its_first_event(at):
    at.change(insert(1))
    at.source.catalog["note"] = CatalogColumn(4, "text", codecs.TEXT, -1, None, False, False)
    at.router.relation(with_note(), b"R")
    assert at.router.take_control() == []
    (record,) = at.change(Insert(RELID, (b"2", b"x", b"1", b"new")))
    assert record.schema_version == 2
    assert record.after["note"] == "new"
    ((key, value),) = at.router.take_control()
    assert json.loads(key) == ["schema", "public", "orders", 1, 2]
    assert json.loads(value)["from"] == str(record.position)
    # The same relation again, as after any invalidation, is no new version.
    at.router.relation(with_note(), b"R")
    (again,) = at.change(Insert(RELID, (b"3", b"x", b"1", None)))
    assert again.schema_version == 2
    assert at.router.take_control() == []


def test_a_column_added_within_the_transaction_is_not_in_its_earlier_rows(at):
    at.change(insert(1, BIG))
    at.source.catalog["note"] = CatalogColumn(4, "text", codecs.TEXT, -1, None, False, False)
    at.router.relation(with_note(), b"R")
    (record,) = at.change(Update(RELID, "", None, (b"1", UNSENT, b"2", UNSENT)))
    assert record.after["big"] == BIG.decode()
    assert record.unchanged == ("note",)


def test_values_before_a_dropped_column_are_not_taken_for_those_of_others(at):
    wide = table_schema(
        ("id", codecs.INT4), ("big", codecs.TEXT), ("more", codecs.TEXT), ("n", codecs.INT4), lsn=1
    )
    columns = tuple(RelationColumn(c.name, c.type_oid, -1, c.name == "id") for c in wide.columns)
    at = Setup(wide, Relation(RELID, "public", "orders", "d", columns))
    at.source.catalog = {
        c.name: CatalogColumn(c.id, c.type, c.type_oid, -1, None, False, False)
        for c in wide.columns
        if c.name != "big"
    }
    at.source.values = {1: b"re-read"}
    at.change(Insert(RELID, (b"1", BIG, b"m" * 2000, b"1")))
    at.router.relation(Relation(RELID, "public", "orders", "d", (columns[0], *columns[2:])), b"R")
    (record,) = at.change(Update(RELID, "", None, (b"1", UNSENT, b"2")))
    assert record.after == {"id": 1, "more": "re-read", "n": 2}
    assert (record.unchanged, record.schema_version) == (("more",), 2)
    ((_, value),) = at.router.take_control()
    assert [c["name"] for c in json.loads(value)["dropped"]] == ["big"]


def test_a_relation_is_compared_only_when_a_change_needs_it(at):
    at.router.relation(Relation(RELID, "public", "orders", "d", RELATION.columns[:2]), b"R")
    at.router.relation(RELATION, b"R")
    assert at.change(insert(1))


# --- what stops the source ---


def stopped(at, event):
    with pytest.raises(SourceStopped) as caught:
        at.router.change(event, 10, 0)
    return caught.value


def test_a_retyped_column_stops_and_names_table_position_and_remedy(at):
    at.change(insert(1))
    retyped = (*RELATION.columns[:2], RelationColumn("n", codecs.INT8, -1, False))
    at.router.relation(Relation(RELID, "public", "orders", "d", retyped), b"R")
    error = stopped(at, Insert(RELID, (b"1", b"x", b"1")))
    assert error.code == "column_retyped"
    assert error.table == "shop.public.orders"
    assert error.position == "0000-00000000000003E8-00000002"
    assert at.router.control == []


def test_the_policies_are_those_of_the_newest_settings(at):
    at.change(insert(1))
    at.source.catalog["note"] = CatalogColumn(4, "text", codecs.TEXT, -1, None, False, False)
    at.router.use(dataclasses.replace(SETTINGS, schema_policies=SchemaPolicies("exception")))
    at.router.relation(with_note(), b"R")
    error = stopped(at, Insert(RELID, (b"2", b"x", b"1", b"new")))
    assert (error.code, error.table) == ("schema_change", "shop.public.orders")
    assert "column note was added" in error.message and "exception" in error.message
    assert error.remedy


def test_a_table_that_is_created_again_stops(at):
    at.router.relation(Relation(500, "public", "orders", "d", RELATION.columns), b"R")
    assert stopped(at, Insert(500, (b"1", b"x", b"1"))).code == "table_recreated"


def test_a_truncate_of_a_changed_table_stops(at):
    at.router.relation(Relation(RELID, "public", "renamed", "d", RELATION.columns), b"R")
    with pytest.raises(SourceStopped, match="renamed"):
        at.router.truncate(Truncate((RELID,), False, False))


def test_text_that_is_not_utf8_stops_and_names_the_column_not_the_value(at):
    error = stopped(at, insert(1, b"secret\xff"))
    assert error.code == "bad_value"
    assert "big" in error.message
    assert "secret" not in str(error)


def test_a_record_over_the_limit_stops():
    setup = Setup()

    def refuse(*_):
        raise LogError("record_too_large", "a record of 9 bytes exceeds its limit")

    setup.router._send = refuse
    error = stopped(setup, insert(1))
    assert error.code == "record_too_large"
    assert error.table == "shop.public.orders"
    assert "max.message.bytes" in error.remedy


def test_other_errors_of_the_log_pass():
    setup = Setup()

    def refuse(*_):
        raise LogError("kafka_timeout", "no answer")

    setup.router._send = refuse
    with pytest.raises(LogError, match="no answer"):
        setup.router.change(insert(1), 10, 0)


def test_a_change_of_an_undescribed_relation_is_refused(at):
    with pytest.raises(ProtocolViolation, match="not described"):
        at.router.change(Insert(12345, (b"1",)), 10, 0)


def test_a_row_of_another_width_is_refused(at):
    for event in (
        Insert(RELID, (b"1", b"x")),
        Update(RELID, "", None, (b"1", b"x")),
        Delete(RELID, "K", (b"1",)),
    ):
        with pytest.raises(ProtocolViolation, match="more or fewer columns"):
            at.router.change(event, 10, 0)


def test_counts_are_by_table(at):
    at.change(insert(1))
    at.change(Delete(RELID, "K", (b"1", None, None)))
    assert at.router.changes == {TableId("public", "orders"): 2}
    assert at.router.records == 3
