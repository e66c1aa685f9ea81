"""The key that cdc.yaml gives: whether it can be, and what follows from another one."""

import dataclasses

import pytest

from cdc.control import ControlState, LoadRecord, TableRecord, schema_key_value
from cdc.names import TableId
from cdc.position import Position
from cdc.states import COPYING, DONE, ERRORED, INTENDED, READY, REMOVED
from connectors.postgres.catalog import ColumnDefinition, IndexDefinition, TableDefinition
from connectors.postgres.rekeying import has_other_key, key_changes, with_chosen_keys
from connectors.postgres.silent import SeenColumn, TableIdentity, silent_changes
from connectors.postgres.table_checks import key_problems

ORDERS = TableId("public", "orders")
COLUMNS = tuple(
    ColumnDefinition(n, name, 23, -1, "integer", not_null, None, generated=False)
    for n, (name, not_null) in enumerate([("id", True), ("a", True), ("b", True), ("c", False)], 1)
)
PRIMARY = IndexDefinition("orders_pkey", ("id",), deferrable=False)
BOTH = IndexDefinition("both", ("b", "a"), deferrable=False)
NULLS = IndexDefinition("nulls", ("c",), deferrable=False)


def table(wanted=None, identity="f", **changes):
    definition = TableDefinition(
        id=ORDERS,
        relid=16500,
        filenode=1,
        kind="r",
        persistence="p",
        identity=identity,
        columns=COLUMNS,
        primary_key=PRIMARY,
        identity_index=None,
        unique_indexes=(NULLS, BOTH),
        ancestors=(),
        children=False,
        rows_hidden=False,
        readable=True,
        ours=True,
        owner="me",
        pub_rel=None,
        wanted_key=wanted,
    )
    return dataclasses.replace(definition, **changes)


@pytest.mark.parametrize(
    ("definition", "key"),
    [
        (table(), ("id",)),
        (table(primary_key=None), ("b", "a")),
        (table(primary_key=None, unique_indexes=(NULLS,)), None),
        # In the order of cdc.yaml.
        (table(("a", "b")), ("a", "b")),
        (table(("id",)), ("id",)),
        (table(("a", "b"), primary_key=None), ("a", "b")),
        (table(("c",)), None),
        (table(("a",)), None),
        (table(("id",), identity="d"), ("id",)),
    ],
)
def test_the_key_of_a_table(definition, key):
    assert (definition.key.columns if definition.key else None) == key
    assert [finding.code for finding in key_problems(definition)] == (
        # Without one the rows are counted.
        [] if key or definition.wanted_key is None else ["key_not_unique"]
    )


def test_a_primary_key_that_is_checked_late_may_be_chosen():
    late = dataclasses.replace(PRIMARY, deferrable=True)
    definition = table(("id",), primary_key=late)
    assert not list(key_problems(definition))
    assert definition.schema(1, Position(0, 1, 0)).deferrable


@pytest.mark.parametrize(
    ("definition", "code", "told", "remedy"),
    [
        (
            table(("c",)),
            "key_not_unique",
            "the key (c), of which two rows can be the same: c may be NULL",
            'ALTER TABLE "public"."orders" ALTER "c" SET NOT NULL;',
        ),
        (
            table(("a", "c")),
            "key_not_unique",
            "c may be NULL and there is no valid unique index on exactly these columns",
            'ALTER TABLE "public"."orders" ALTER "c" SET NOT NULL; '
            'CREATE UNIQUE INDEX ON "public"."orders" ("a", "c");',
        ),
        (
            table(("b",)),
            "key_not_unique",
            "no valid unique index",
            'CREATE UNIQUE INDEX ON "public"."orders" ("b");',
        ),
        (
            table(("a", "b"), identity="d"),
            "key_without_full",
            "replica identity is (id)",
            '"orders" REPLICA IDENTITY FULL; or take `key` of public.orders out',
        ),
        (
            table(("a",), identity="d", primary_key=None),
            "key_without_full",
            "no index",
            "REPLICA IDENTITY FULL",
        ),
        (table(("a", "x")), "key_unknown", "no column x", "correct `key` of public.orders"),
    ],
)
def test_a_key_that_cannot_be_is_refused_by_name(definition, code, told, remedy):
    (finding,) = key_problems(definition)
    assert (finding.code, finding.subject) == (code, "public.orders")
    assert told in finding.problem and remedy in finding.remedy


def control(key, *, chosen=True, state=READY, load_state=DONE, identity="f"):
    """Of a table that was loaded, or is, with a key."""
    definition = table(key if chosen else None, identity=identity)
    schema = dataclasses.replace(definition.schema(1, Position(0, 1, 0)), key=key)
    found = ControlState()
    load = LoadRecord(ORDERS, 1, "t", "id", "chunks", 100, load_state)
    for record in (
        TableRecord(ORDERS, state, 1, "t", "id", 1).to_key_value(),
        load.to_key_value(),
        schema_key_value(schema),
    ):
        found.apply(*record)
    return found


@pytest.mark.parametrize(
    ("known", "wanted", "looked_at", "again"),
    [
        (control(("id",), chosen=False), None, False, False),
        # Somebody made an index that would have been taken: it changes nothing.
        (control(("a", "b"), chosen=False), None, False, False),
        (control(("id",), chosen=False), ("id",), True, False),
        (control(("id",), chosen=False), ("a", "b"), True, True),
        (control(("a", "b")), ("a", "b"), True, False),
        (control(("a", "b")), ("b", "a"), True, True),
        (control(("a", "b")), None, True, True),
        (control(("id",)), None, True, False),
        # The next load takes it.
        (control(("id",), state=ERRORED), ("a", "b"), True, False),
        (control(("id",), load_state=INTENDED), ("a", "b"), True, False),
        # That begins anew by itself.
        (control(("id",), load_state=COPYING), ("a", "b"), True, False),
        (control(("id",), state=REMOVED), ("a", "b"), False, False),
    ],
)
def test_a_table_with_another_key_is_loaded_anew(known, wanted, looked_at, again):
    keys = {} if wanted is None else {ORDERS: wanted}
    assert bool(with_chosen_keys(keys, known)) == looked_at
    if looked_at:
        assert key_changes(known, [table(wanted)]) == ([ORDERS] if again else [], [])


def test_a_key_that_cannot_be_is_refused_unless_the_source_made_it_so():
    without = table(("a", "b"), unique_indexes=())
    again, findings = key_changes(control(("id",)), [without])
    assert (again, [finding.code for finding in findings]) == ([], ["key_not_unique"])
    # What was a key, and is none any more, keeps back this table alone.
    assert key_changes(control(("a", "b")), [without]) == ([], [])
    again, findings = key_changes(control(("id",), identity="d"), [table(("a",), identity="d")])
    assert (again, [finding.code for finding in findings]) == ([], ["key_without_full"])


def test_a_load_under_way_with_another_key():
    chosen = table(("a", "b")).schema(1, Position(0, 1, 0))
    default = table().schema(1, Position(0, 1, 0))
    assert (chosen.chosen, default.chosen) == (True, False)
    assert not has_other_key(chosen, ("a", "b"))
    assert has_other_key(chosen, ("id",)) and has_other_key(chosen, None)
    assert not has_other_key(default, None) and has_other_key(default, ("a", "b"))
    # Its identity says all.
    assert not has_other_key(table(("id",), identity="d").schema(1, Position(0, 1, 0)), ("id",))


@pytest.mark.parametrize(
    ("keys", "lost"),
    [
        ({(frozenset("ab"), False)}, False),
        ({(frozenset({"id"}), False), (frozenset("ab"), False)}, False),
        # Two rows may swap it now within a transaction.
        ({(frozenset("ab"), True)}, True),
        ({(frozenset({"id"}), False)}, True),
        (set(), True),
    ],
)
def test_a_key_that_was_lost_at_the_source(keys, lost):
    schema = table(("a", "b")).schema(1, Position(0, 1, 0))
    columns = tuple(
        SeenColumn(c.number, c.name, c.type_oid, c.typmod, filled=False) for c in COLUMNS
    )
    now = TableIdentity(1, None, ORDERS, True, "f", columns, keys=frozenset(keys))
    record = TableRecord(ORDERS, READY, 1, "t", "id", 1, filenode=1)
    found = [change.code for change in silent_changes(schema, record, now)]
    assert found == (["key_lost"] if lost else [])


@pytest.mark.parametrize("identity", ["f", "d"])
@pytest.mark.parametrize("strict", [True, False])
def test_full_with_a_generated_column_that_is_not_sent(identity, strict):
    twice = dataclasses.replace(COLUMNS[3], number=5, name="twice", generated=True, on_wire=False)
    definition = table(identity=identity, columns=(*COLUMNS, twice), full_sends_generated=strict)
    found = [finding.code for finding in key_problems(definition)]
    assert found == (["generated_not_published"] if strict and identity == "f" else [])
    sent = dataclasses.replace(twice, on_wire=True)
    assert not list(key_problems(dataclasses.replace(definition, columns=(*COLUMNS, sent))))
