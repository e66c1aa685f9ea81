"""A transaction over a table whose keys can swap, reduced to what it does to each key."""

import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import codecs
from cdc.envelope import Origin, RowEncoder, TransactionFields
from cdc.position import Position
from cdc.schema import Column, TableSchema
from connectors.postgres.drift import SchemaDrift
from connectors.postgres.net_effect import NetEffect

SCHEMA = TableSchema(
    schema="public",
    table="t",
    load=1,
    version=1,
    relid=1,
    identity="f",
    key=("id",),
    columns=(
        Column(1, "id", codecs.INT4, -1, "integer", True),
        Column(2, "v", codecs.TEXT, -1, "text", False),
    ),
    valid_from=Position(0, 1, 0),
    deferrable=True,
)
TXN = TransactionFields(0, 100, 7, 0, 0, snapshot=False)


@pytest.fixture
def net():
    return NetEffect(RowEncoder(SCHEMA, Origin("0", "shop", "shop")))


def row(id, v):
    return (str(id).encode(), v.encode())


def ops(records):
    found = []
    for key, value, _ in records:
        if value is not None:
            envelope = orjson.loads(value)
            after = envelope["after"]
            found.append((envelope["op"], orjson.loads(key)["id"], after and after["v"]))
    return found


def test_two_rows_swap_their_keys(net):
    for ordinal, (old, new) in enumerate([((1, "a"), (2, "a")), ((2, "b"), (1, "b"))], 1):
        net.remove(row(*old), ordinal, 10)
        net.add(row(*new), ordinal, 10)
    assert ops(net.records(TXN)) == [("u", 2, "a"), ("u", 1, "b")]
    assert net.records(TXN) == []


def test_a_row_that_comes_and_goes_leaves_nothing(net):
    net.add(row(5, "x"), 1, 10)
    net.remove(row(5, "x"), 2, 10)
    assert net.records(TXN) == []


def test_a_truncate_voids_what_came_before(net):
    net.remove(row(1, "a"), 1, 10)
    net.add(row(2, "a"), 1, 10)
    net.truncate()
    net.add(row(3, "c"), 3, 10)
    assert ops(net.records(TXN)) == [("c", 3, "c")]


def test_two_rows_of_one_key_at_the_end_are_not_a_transaction(net):
    net.add(row(1, "a"), 1, 10)
    net.add(row(1, "b"), 2, 10)
    with pytest.raises(SchemaDrift):
        net.records(TXN)


@given(st.data())
def test_the_records_lead_from_the_rows_before_to_those_after(data):
    """Any changes that leave keys unique at the end, unique in between or not."""
    net = NetEffect(RowEncoder(SCHEMA, Origin("0", "shop", "shop")))
    before = data.draw(st.dictionaries(st.integers(0, 4), st.sampled_from("ab")))
    rows = list(before.items())
    ordinals = itertools.count(1)
    for _ in range(data.draw(st.integers(0, 12))):
        kind = data.draw(st.sampled_from("iud"))
        if kind == "i" or not rows:
            made = (data.draw(st.integers(0, 4)), data.draw(st.sampled_from("ab")))
            rows.append(made)
            net.add(row(*made), next(ordinals), 10)
            continue
        old = rows.pop(data.draw(st.integers(0, len(rows) - 1)))
        ordinal = next(ordinals)
        net.remove(row(*old), ordinal, 10)
        if kind == "u":
            new = (data.draw(st.integers(0, 4)), data.draw(st.sampled_from("ab")))
            rows.append(new)
            net.add(row(*new), ordinal, 10)
    # The constraint holds at the commit: whoever is one too many goes.
    kept: dict[int, str] = {}
    for id, v in rows:
        if id in kept:
            net.remove(row(id, v), next(ordinals), 10)
        else:
            kept[id] = v
    state = dict(before)
    records = net.records(TXN)
    for op, id, v in ops(records):
        if op == "d":
            del state[id]
        else:
            assert (id in state) == (op == "u")
            state[id] = v
    assert state == kept
    keys = [key for key, value, _ in records if value is not None]
    assert len(keys) == len(set(keys))
