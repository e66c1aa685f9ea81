"""The tail in typed values: keys, later columns, schemas that do not fit."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal

import pytest

from cdc import codecs
from cdc.envelope import LogRecord
from cdc.errors import LakeError, LogError
from cdc.fold import Inherit
from cdc.position import Position, frontier
from cdc.query.tail import KeyEncoder, Tail, fold_tail, settle_tail
from tests.support.schemas import column, table_schema

SCHEMA = table_schema(
    column(1, "id", codecs.INT8),
    column(2, "n", codecs.NUMERIC, type="numeric(10,2)"),
    column(3, "big", codecs.TEXT),
)
F = frontier(0, 100)


def record(offset, key=b'{"id":1}', op="c", lsn=10, version=1, **fields):
    return LogRecord(0, offset, key, Position(0, lsn, offset + 1), version, op, **fields)


def fold(*records, schema=SCHEMA, start=None, truncate=None, versions=None):
    return fold_tail(records, schema, F, start, truncate, versions or {1: SCHEMA})


@pytest.mark.parametrize(
    ("oid", "key", "value"),
    [
        (codecs.INT8, b'{"id":9223372036854775807}', 9223372036854775807),
        (codecs.TEXT, '{"id":"é\\""}'.encode(), 'é"'),
        (codecs.DATE, b'{"id":"2020-01-02"}', dt.date(2020, 1, 2)),
        (codecs.UUID, b'{"id":"00000000-0000-0000-0000-000000000001"}',
         "00000000-0000-0000-0000-000000000001"),
    ],
)  # fmt: skip
def test_one_simple_key_column_stands_for_itself(oid, key, value):
    encode = KeyEncoder(table_schema(("id", oid)))
    assert encode.name == "id"
    assert encode(key) == value


@pytest.mark.parametrize("oid", [codecs.NUMERIC, codecs.BPCHAR, codecs.TIMESTAMP, codecs.BYTEA])
def test_other_keys_are_their_json(oid):
    encode = KeyEncoder(table_schema(("id", oid)))
    assert encode.name == "_cdc_key"
    assert encode(b'{"id":"x"}') == '{"id":"x"}'


def test_several_key_columns_are_their_json():
    encode = KeyEncoder(table_schema(("id", codecs.INT8), ("b", codecs.INT8), key=("id", "b")))
    assert encode(b'{"id":1,"b":2}') == '{"id":1,"b":2}'


def test_rows_are_typed_and_deleted_keys_are_kept():
    tail = fold(
        record(0, after={"id": 1, "n": "1.50", "big": None}),
        record(1, b'{"id":2}', "d", before={"id": 2}),
        start=frontier(0, 5),
    )
    assert tail.rows == [(1, Decimal("1.50"), None)]
    assert sorted(tail.keys) == [1, 2]
    assert tail.keeps_base


def test_records_outside_of_the_range_do_not_count():
    late = record(9, b'{"id":9}', lsn=100, after={"id": 9}, version=7)
    early = record(0, b'{"id":8}', lsn=4, after={"id": 8})
    tail = fold(early, late, start=frontier(0, 5))
    assert (tail.keys, tail.rows) == ([], [])


def test_a_truncate_voids_the_base():
    cut = Position(0, 50, 1)
    tail = fold(record(0, after={"id": 1}), start=frontier(0, 5), truncate=cut)
    assert (tail.keys, tail.rows, tail.keeps_base) == ([], [], False)
    assert fold(start=frontier(0, 60), truncate=cut).keeps_base
    assert not fold().keeps_base


def test_columns_added_later_are_null():
    wider = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, column(4, "x", codecs.TEXT)))
    tail = fold(
        record(0, after={"id": 1, "n": None, "big": None}),
        schema=wider,
        versions={1: SCHEMA, 2: wider},
    )
    assert tail.rows == [(1, None, None, None)]


def test_a_dropped_column_counts_no_more_in_records_that_have_it():
    big = SCHEMA.column("big")
    after = replace(SCHEMA, version=2, columns=SCHEMA.columns[:2], dropped=(big,))
    tail = fold(
        record(0, after={"id": 1, "n": "1", "big": "old"}),
        # Its value was never told, and nobody can tell it any more.
        record(1, b'{"id":2}', op="u", after={"id": 2, "n": "2"}, unchanged=("big",)),
        schema=after,
        versions={1: SCHEMA, 2: after},
    )
    assert sorted(tail.rows) == [(1, Decimal("1")), (2, Decimal("2"))]


def test_versions_that_are_unknown_or_changed():
    with pytest.raises(LogError) as lost:
        fold(record(0, version=3, after={"id": 1}))
    assert lost.value.code == "schema_unknown"
    for changed in (
        column(2, "n", codecs.NUMERIC, type="numeric(10,3)"),
        column(2, "renamed", codecs.NUMERIC, type="numeric(10,2)"),
    ):
        old = replace(SCHEMA, columns=(SCHEMA.columns[0], changed, SCHEMA.columns[2]))
        with pytest.raises(LakeError) as refused:
            fold(record(0, after={"id": 1}), versions={1: old})
        assert refused.value.code == "schema_change_unsupported"


def test_values_out_of_range_name_the_column_only():
    with pytest.raises(LakeError) as refused:
        fold(record(0, after={"id": 1, "n": "1x", "big": None}))
    assert refused.value.code == "value_out_of_range"
    assert "column n" in refused.value.message and "1x" not in refused.value.message


def test_unsent_columns_are_taken_over():
    tail = fold(
        record(0, op="u", after={"id": 1, "n": "2"}, unchanged=("big",)), start=frontier(0, 5)
    )
    names = SCHEMA.column_names
    found = tail.inherited(names)
    assert (found.keys, found.columns) == ({b'{"id":1}'}, {"big"})
    settled = settle_tail(tail, names, {b'{"id":1}': {"big": "held"}})
    assert settled.rows == [(1, Decimal("2"), "held")]
    with pytest.raises(LogError) as lost:
        settle_tail(tail, names, {})
    assert lost.value.code == "value_lost"


def test_a_reread_value_stands_in_for_a_row_that_is_not_there():
    mark = Inherit(b'{"id":1}', "re-read", True)
    tail = Tail([1], [(1, None, mark)], True)
    assert settle_tail(tail, SCHEMA.column_names, {}).rows == [(1, None, "re-read")]
    held = {b'{"id":1}': {"big": None}}
    assert settle_tail(tail, SCHEMA.column_names, held).rows == [(1, None, None)]
