"""Each way in which history may be gone has its name, and a remedy."""

import dataclasses
from typing import Any

import pytest

from cdc.control import ControlState, SourceRecord, TableRecord
from cdc.errors import CdcError, ConfigError, HistoryGap, SourceError, SourceRefused, SourceStopped
from cdc.log.admin import PartitionOffsets
from cdc.names import TableId
from cdc.position import frontier
from cdc.states import ERRORED, READY
from connectors.postgres.client import SystemIdentity
from connectors.postgres.log_writer import LogPosition
from connectors.postgres.publication import OPERATIONS, PublicationInfo
from connectors.postgres.publishing import Publishing
from connectors.postgres.silent import TableIdentity
from connectors.postgres.slot import SlotInfo
from connectors.postgres.startcheck import (
    check_errored,
    check_identity,
    check_names,
    check_publication,
    check_server,
    check_slot,
    topic_gaps,
)
from connectors.postgres.table_set import TableChanges, table_changes
from tests.unit.connectors.test_capture_router import SETTINGS

ORDERS = SETTINGS.tables[0]
POSITION = LogPosition(frontier(0, 1000), 1000, "7", 1, "s", None, 0, 5, {"t": {0: 10, 1: 4}})
RECORD = TableRecord(ORDERS, READY, 1, "t", "id", 2, relid=16385, pub_rel={"oid": 500, "xmin": 600})
IDENTITY = SystemIdentity("7", 1, 1000, "shop")
SLOT = SlotInfo("s", "pgoutput", "shop", None, "reserved", None, 900, 950, None, False, False)
PUBLICATION = PublicationInfo(
    "p", 1, 2, False, {}, False, False, OPERATIONS, frozenset({ORDERS}), frozenset(), frozenset()
)  # fmt: skip
TOPICS = {"t": ("id", 2)}
OFFSETS = {"t": {0: PartitionOffsets(0, 10, 10), 1: PartitionOffsets(0, 4, 9)}}


def identity(**changes):
    found: dict[str, Any] = {"filenode": 1, "pub_rel": (500, 600), "id": ORDERS, "logged": True}
    return TableIdentity(identity="d", columns=(), **{**found, **changes})


def fails(kind, code, check, *arguments):
    with pytest.raises(CdcError) as caught:
        check(*arguments)
    assert (type(caught.value), caught.value.code) == (kind, code)
    assert caught.value.remedy
    return caught.value


def test_a_source_as_it_was_left_passes():
    control = ControlState(tables={ORDERS: RECORD})
    check_names(SETTINGS, control)
    check_errored(SETTINGS, control)
    check_server(POSITION, IDENTITY)
    assert check_slot(SETTINGS, POSITION, SLOT) == 950
    assert check_slot(SETTINGS, POSITION, dataclasses.replace(SLOT, confirmed_flush=1000)) == 1000
    check_publication(SETTINGS, PUBLICATION, {ORDERS})
    check_identity(SETTINGS, RECORD, identity())
    assert not topic_gaps(SETTINGS, {ORDERS: RECORD}, POSITION, TOPICS, OFFSETS)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"sysid": "8"}, "other_system"),
        ({"timeline": 2}, "timeline_changed"),
        ({"wal_end": 999}, "server_behind"),
    ],
)
def test_another_server_is_named(change, code):
    fails(HistoryGap, code, check_server, POSITION, IDENTITY._replace(**change))


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"plugin": "test_decoding"}, SourceRefused, "slot_foreign"),
        ({"database": "other"}, SourceRefused, "slot_foreign"),
        ({"two_phase": True}, SourceRefused, "slot_foreign"),
        ({"wal_status": "lost"}, HistoryGap, "slot_lost"),
        ({"invalidation_reason": "wal_removed"}, HistoryGap, "slot_lost"),
        ({"active_pid": 77}, SourceError, "slot_active"),
        ({"confirmed_flush": 1001}, HistoryGap, "slot_ahead"),
    ],
)
def test_a_slot_that_does_not_fit_is_named(change, kind, code):
    slot = dataclasses.replace(SLOT, **change)
    error = fails(kind, code, check_slot, SETTINGS, POSITION, slot)
    if code == "slot_active":
        assert "77" in error.message


def test_a_slot_that_is_gone_is_named():
    error = fails(HistoryGap, "slot_missing", check_slot, SETTINGS, POSITION, None)
    assert "cdc destroy" in (error.remedy or "")


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"tables": frozenset()}, HistoryGap, "publication_changed"),
        ({"operations": OPERATIONS - {"delete"}}, HistoryGap, "publication_changed"),
        ({"row_filtered": frozenset({ORDERS})}, HistoryGap, "publication_changed"),
        ({"column_listed": frozenset({ORDERS})}, HistoryGap, "publication_changed"),
    ],
)
def test_a_publication_that_was_changed_is_named(change, kind, code):
    changed = dataclasses.replace(PUBLICATION, **change)
    fails(kind, code, check_publication, SETTINGS, changed, {ORDERS})


def test_what_else_a_publication_has_is_not_ours():
    more = dataclasses.replace(PUBLICATION, tables=frozenset({ORDERS, TableId("public", "more")}))
    check_publication(SETTINGS, more, {ORDERS})
    theirs = dataclasses.replace(SETTINGS, manage_publication=False)
    all_tables = dataclasses.replace(PUBLICATION, all_tables=True, tables=frozenset())
    check_publication(theirs, all_tables, {ORDERS})
    fails(HistoryGap, "publication_changed", check_publication, SETTINGS, all_tables, {ORDERS})


ROOT, MIDDLE = TableId("public", "root"), TableId("public", "middle")


@pytest.mark.parametrize(
    ("change", "managed", "wanted", "ancestors", "partitioned", "codes"),
    [
        ({"via_root": True}, True, (), (MIDDLE, ROOT), False, []),
        ({"via_root": True}, True, (ROOT,), (MIDDLE, ROOT), False, ["partition"]),
        (None, True, (ROOT,), (ROOT,), False, ["partition"]),
        (None, True, (), (ROOT,), False, []),
        ({"via_root": True}, False, (ROOT,), (ROOT,), True, []),
        ({"via_root": True, "all_tables": True}, False, (), (ROOT,), False, ["partition"]),
        ({"all_tables": True}, False, (), (MIDDLE, ROOT), False, []),
        ({"all_tables": True}, False, (), (ROOT,), True, ["publication_differs"]),
        ({"operations": frozenset({"insert"})}, False, (), (), False, ["publication_differs"]),
    ],
)
def test_a_table_that_a_publication_does_not_send_as_a_whole_by_its_name(
    change, managed, wanted, ancestors, partitioned, codes
):
    info = None if change is None else dataclasses.replace(PUBLICATION, **change)
    problems = list(
        Publishing("p", info, managed, wanted).problems(ORDERS, ancestors, partitioned=partitioned)
    )
    assert [code for code, _, _ in problems] == codes
    if info is not None and not managed:
        # It is judged table by table; the source goes on.
        theirs = dataclasses.replace(SETTINGS, manage_publication=False)
        check_publication(theirs, info, {ORDERS}, {ORDERS} if partitioned else ())


def test_a_publication_that_is_gone_is_named():
    fails(HistoryGap, "publication_missing", check_publication, SETTINGS, None, {ORDERS})


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({}, "table_missing"),
        ({ORDERS: identity(pub_rel=None)}, "publication_changed"),
        ({ORDERS: identity(pub_rel=(501, 600))}, "publication_changed"),
        ({ORDERS: identity(pub_rel=(500, 601))}, "publication_changed"),
        ({ORDERS: identity(id=TableId("sales", "orders"))}, "table_renamed"),
        ({ORDERS: identity(logged=False)}, "unlogged"),
        ({ORDERS: identity(not_in_wal=("orders_2",))}, "unlogged_partition"),
    ],
)
def test_a_table_that_is_not_what_it_was_is_named(found, code):
    error = fails(SourceStopped, code, check_identity, SETTINGS, RECORD, found.get(ORDERS))
    assert error.table == "shop.public.orders"


@pytest.mark.parametrize(
    ("topics", "offsets", "code"),
    [
        ({}, {}, "topic_missing"),
        ({"t": ("other", 2)}, OFFSETS, "topic_changed"),
        ({"t": ("id", 3)}, OFFSETS, "topic_changed"),
        (TOPICS, {"t": {**OFFSETS["t"], 0: PartitionOffsets(0, 9, 9)}}, "log_truncated"),
    ],
)
def test_a_topic_that_is_not_what_was_written_is_named(topics, offsets, code):
    gaps = topic_gaps(SETTINGS, {ORDERS: RECORD}, POSITION, topics, offsets)
    assert [(id, gap.code, gap.table) for id, gap in gaps.items()] == [
        (ORDERS, code, "shop.public.orders")
    ]


def test_when_no_topic_is_what_was_written_it_is_another_log():
    other = dataclasses.replace(RECORD, id=TableId("public", "other"), topic="u")
    records = {ORDERS: RECORD, other.id: other}
    assert set(topic_gaps(SETTINGS, records, POSITION, TOPICS, OFFSETS)) == {other.id}
    error = fails(HistoryGap, "topic_missing", topic_gaps, SETTINGS, records, POSITION, {}, {})
    assert error.table == "shop.public.orders"


def test_tables_that_are_new_or_gone_in_the_configuration():
    other, left = TableId("public", "other"), TableId("public", "left")
    assert table_changes(SETTINGS, {other}, ()) == TableChanges((ORDERS,), (other,))
    again = dataclasses.replace(SETTINGS, tables=(left, other))
    assert table_changes(again, {other}, ()) == TableChanges((left,), ())


def test_tables_that_come_and_go_under_a_pattern():
    other, left = TableId("public", "other"), TableId("public", "left")
    changes = table_changes(SETTINGS, {ORDERS, left}, [other, ORDERS])
    assert changes == TableChanges((other,), (left,))
    # What is given by its name stays, whether the source has it or not.
    assert table_changes(SETTINGS, {ORDERS}, []) == TableChanges((), ())


@pytest.mark.parametrize("field", ["slot", "publication", "database"])
def test_another_slot_publication_or_database_is_refused(field):
    source = SourceRecord("7", 1, "s", "p", 0, 150000, "shop")
    changed: dict[str, Any] = {field: "before"}
    source = dataclasses.replace(source, **changed)
    control = ControlState(source=source, tables={ORDERS: RECORD})
    error = fails(ConfigError, "slot_changed", check_names, SETTINGS, control)
    assert "before" in error.message


def test_a_source_that_was_stopped_stays_so_with_its_reason():
    stopped = dataclasses.replace(
        RECORD, state=ERRORED, last_good=frontier(0, 900), reason="why", remedy="how"
    )
    control = ControlState(tables={ORDERS: stopped})
    error = fails(SourceStopped, "source_errored", check_errored, SETTINGS, control)
    assert "why" in error.message
    assert error.remedy == "how"
    assert error.position == str(frontier(0, 900))


def test_a_table_that_was_set_aside_stops_nothing():
    aside = dataclasses.replace(
        RECORD, state=ERRORED, last_good=frontier(0, 900), reason="why", aside="reload"
    )
    check_errored(SETTINGS, ControlState(tables={ORDERS: aside}))
