"""What the catalog shows of a table that no event tells, and what each policy does about it."""

import dataclasses

from cdc import codecs
from cdc.control import TableRecord
from connectors.postgres.silent import SeenColumn, TableIdentity, silent_changes, to_act_on
from tests.support.schemas import table_schema

SCHEMA = table_schema(("id", codecs.INT4), ("name", codecs.TEXT), ("n", codecs.INT4))
SEEN = tuple(SeenColumn(c.id, c.name, c.type_oid, c.typmod, False) for c in SCHEMA.columns)
RECORD = TableRecord(
    SCHEMA.id, "Ready", 1, "t", None, 1, filenode=5, types={"e1": "sad", "a3": "700"}
)
NOW = TableIdentity(5, None, SCHEMA.id, True, SCHEMA.identity, SEEN, {"e1": "sad", "a3": "700"})
MORE = SeenColumn(4, "more", codecs.INT4, -1, False)


def acted(policy, *columns, schema=SCHEMA, **changed):
    """The code that ends the topic, and the names of the columns that are gone."""
    now = dataclasses.replace(NOW, columns=columns, **changed)
    change, gone = to_act_on(silent_changes(schema, RECORD, now), policy)
    return change and change.code, [c.name for c in gone]


def test_nothing_is_done_about_a_table_that_is_as_known():
    assert acted("exception", *SEEN) == (None, [])


def test_all_that_are_dropped_are_gone_at_once():
    assert acted("lenient", SEEN[0]) == (None, ["name", "n"])
    assert acted("exception", SEEN[0]) == ("column_dropped", [])


def test_what_ends_the_topic_goes_before_what_is_followed():
    retyped = dataclasses.replace(SEEN[2], type_oid=codecs.INT8)
    assert acted("lenient", SEEN[0], retyped) == ("column_retyped", [])
    assert acted("ignore", *SEEN, MORE, filenode=6, types={"e1": "blue"}) == ("type_changed", [])


def test_a_rename_is_told_from_a_drop_by_the_number():
    renamed = dataclasses.replace(SEEN[1], name="title")
    assert acted("lenient", SEEN[0], renamed, SEEN[2]) == ("column_renamed", [])
    assert acted("ignore", SEEN[0], renamed, SEEN[2]) == (None, ["name"])
    other = dataclasses.replace(renamed, number=9)
    assert acted("lenient", SEEN[0], SEEN[2], other) == (None, ["name"])
    replaced = dataclasses.replace(SEEN[1], number=9)
    assert acted("ignore", SEEN[0], SEEN[2], replaced) == ("column_replaced", [])


def test_added_columns_wait_for_an_event_unless_old_rows_have_values():
    filled = dataclasses.replace(MORE, filled=True)
    assert acted("lenient", *SEEN, MORE) == (None, [])
    assert acted("lenient", *SEEN, filled) == ("column_default", [])
    assert acted("lenient", *SEEN, MORE, filenode=6) == ("table_rewritten", [])
    assert acted("ignore", *SEEN, filled, filenode=6) == (None, [])
    assert acted("exception", *SEEN, MORE) == ("column_added", [])


def test_what_is_hidden_may_change_silently():
    hidden = dataclasses.replace(SCHEMA.columns[2], hidden=True)
    schema = dataclasses.replace(SCHEMA, columns=(*SCHEMA.columns[:2], hidden))
    assert acted("ignore", *SEEN[:2], schema=schema) == (None, [])


def test_without_a_column_of_its_key_a_table_is_not_followed():
    assert acted("lenient", *SEEN[1:]) == ("key_changed", [])
    renamed = dataclasses.replace(SEEN[0], name="number")
    assert acted("ignore", renamed, *SEEN[1:]) == ("key_changed", [])


def test_values_that_were_rewritten_are_ignored_by_no_policy():
    altered = {"e1": "sad", "a3": "701"}
    assert acted("ignore", *SEEN, types=altered) == (None, [])
    assert acted("ignore", *SEEN, types=altered, filenode=6) == ("values_rewritten", [])
    assert acted("lenient", *SEEN, MORE, types=altered, filenode=6)[0] == "table_rewritten"
