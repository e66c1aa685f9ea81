import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc import codecs
from cdc.envelope import BadValue, RowEncoder, parse_record
from cdc.errors import LogError
from cdc.unsent import UNSENT
from tests.support.golden import LOAD, ORIGIN, TXN
from tests.support.schemas import ALL_TYPES, all_types_row, all_types_schema, table_schema

SCHEMA = table_schema(("id", codecs.INT4), ("name", codecs.TEXT), ("big", codecs.TEXT))
ENCODER = RowEncoder(SCHEMA, ORIGIN)
texts = st.text().filter(lambda s: "\0" not in s)


@given(st.integers(-(2**31), 2**31 - 1), st.none() | texts, st.none() | texts)
def test_a_row_reads_back(id, name, big):
    row = [str(id).encode(), *(t if t is None else t.encode() for t in (name, big))]
    key, value, headers = ENCODER.insert(row, TXN, 1)
    record = parse_record("t", 0, 0, key, value, headers)
    assert record.after == {"id": id, "name": name, "big": big}
    assert json.loads(key) == {"id": id}
    assert b" " not in key


@given(texts)
def test_column_and_table_names_may_be_anything(name):
    schema = table_schema(("id", codecs.INT4), (name + "x", codecs.TEXT), key=(name + "x",))
    key, value, headers = RowEncoder(schema, ORIGIN).insert([b"1", b"v"], TXN, 1)
    assert json.loads(key) == {name + "x": "v"}
    assert parse_record("t", 0, 0, key, value, headers).after == {"id": 1, name + "x": "v"}


def test_snapshot_and_stream_give_equal_bytes():
    encoder = RowEncoder(all_types_schema(), ORIGIN)
    key, value, _ = encoder.snapshot_row(all_types_row(), LOAD)
    streamed_key, streamed, _ = encoder.insert(all_types_row(), TXN, 1)
    after = lambda v: v[v.index(b'"after":') : v.index(b',"source":')]  # noqa: E731
    assert key == streamed_key
    assert after(value) == after(streamed)


def test_an_update_of_the_same_key_is_one_record():
    assert len(ENCODER.update("K", [b"1", None, None], [b"1", b"a", b"b"], TXN, 1)) == 1
    assert len(ENCODER.update("O", [b"1", b"a", b"b"], [b"1", b"c", b"b"], TXN, 1)) == 1


def test_a_key_change_is_delete_tombstone_create_at_one_position():
    out = ENCODER.update("K", [b"1", None, None], [b"2", b"a", b"b"], TXN, 9)
    records = [parse_record("t", 0, i, *r) for i, r in enumerate(out)]
    assert [r.op for r in records] == ["d", "tombstone", "c"]
    assert len({r.position for r in records}) == 1
    assert records[0].new_key == records[2].key
    assert records[2].old_key == records[0].key


@pytest.mark.parametrize(
    ("kind", "old", "row", "unsent"),
    [
        ("", None, [b"1", b"a", UNSENT], (2,)),
        ("K", [b"1", None, None], [UNSENT, b"a", UNSENT], (2,)),
        ("O", [b"1", b"a", b"long"], [b"1", b"b", UNSENT], ()),
        ("O", [b"1", b"a", None], [b"1", UNSENT, UNSENT], (2,)),
    ],
)
def test_unsent_columns_come_from_the_old_tuple(kind, old, row, unsent):
    completed, left = ENCODER.complete(kind, old, row)
    assert left == unsent
    for index, value in enumerate(completed):
        assert (value is UNSENT) == (index in unsent)
        if row[index] is UNSENT and index not in unsent:
            assert value == old[index]


def test_an_old_key_tuple_never_nulls_other_columns():
    """In a K tuple the other columns are not NULL, they are not there."""
    (_, value, _), _ = ENCODER.delete("K", [b"1", None, None], TXN, 1)
    assert value is not None
    assert json.loads(value)["before"] == {"id": 1}


def test_a_bad_value_names_the_column_and_not_the_value():
    with pytest.raises(BadValue, match="column name: not valid UTF-8") as caught:
        ENCODER.insert([b"1", b"s\xff", None], TXN, 1)
    assert "s\\xff" not in str(caught.value)
    with pytest.raises(BadValue, match="column id: a key column without a value"):
        ENCODER.key([None, None, None])
    with pytest.raises(BadValue, match="column id: a key column without a value"):
        ENCODER.key([UNSENT, None, None])


@pytest.mark.parametrize("name", ALL_TYPES)
def test_a_null_of_every_type(name):
    row = [None if n == name and n != "id" else t for n, (_, t) in ALL_TYPES.items()]
    record = parse_record("t", 0, 0, *RowEncoder(all_types_schema(), ORIGIN).insert(row, TXN, 1))
    assert record.after is not None
    assert (record.after[name] is None) == (name != "id")


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"{}", b"{}", None),
        (b"{}", b"not json", [("cdc.position", b"x"), ("cdc.schema", b"1")]),
        (None, None, [("cdc.position", TXN.position(1)), ("cdc.schema", b"1")]),
        (b"{}", b"{}", [("cdc.position", TXN.position(1)), ("cdc.schema", b"1")]),
        (b"{}", b"[]", [("cdc.position", TXN.position(1)), ("cdc.schema", b"1")]),
        (
            b"{}",
            b'{"op":"x","source":{},"before":null,"after":null}',
            [("cdc.position", TXN.position(1)), ("cdc.schema", b"1")],
        ),
    ],
)
def test_a_foreign_record_is_an_error_that_says_where(key, value, headers):
    with pytest.raises(LogError, match=r"record shop\.t\[3\]@17 is not one of ours"):
        parse_record("shop.t", 3, 17, key, value, headers)
