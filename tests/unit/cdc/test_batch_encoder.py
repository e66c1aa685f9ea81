"""The batch encoder against the encoder of the stream: the same bytes, the same refusals."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc import codecs
from cdc.batch_encoder import BatchEncoder
from cdc.envelope import BadValue, Origin, RowEncoder, TransactionFields
from tests.support.schemas import (
    ALL_TYPES,
    BOXES,
    FLOAT8S,
    INT4S,
    MOOD,
    PRICE,
    TEXTS,
    WIRES,
    all_types_row,
    all_types_schema,
    table_schema,
)

ORIGIN = Origin("1.0%b", "shop", "sh%op\\\"'")
LOAD = TransactionFields(
    3, 0x16B3750, None, 1_700_000_000_000_001, 1_700_000_000_002, snapshot=True
)

TRANSACTION = TransactionFields(3, 0x16B3750, 745, 17_000_001, 17_001, snapshot=False)

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
VALUES = {
    codecs.BOOL: st.sampled_from(["t", "f"]),
    codecs.INT2: st.integers(-32768, 32767).map(str),
    codecs.INT4: st.integers(-(2**31), 2**31 - 1).map(str),
    codecs.INT8: st.integers(-(2**63), 2**63 - 1).map(str),
    codecs.FLOAT4: st.sampled_from(["NaN", "Infinity", "-Infinity", "-0", "0.1", "1e+20"]),
    codecs.FLOAT8: st.floats().map(repr).map(lambda v: {"nan": "NaN", "inf": "Infinity"}.get(v, v)),
    codecs.NUMERIC: st.sampled_from(["NaN", "Infinity", "0.00", "-1.50"]) | st.integers().map(str),
    codecs.TEXT: text,
    codecs.VARCHAR: text,
    codecs.BPCHAR: text,
    codecs.BYTEA: st.binary(max_size=9).map(lambda v: "\\x" + v.hex()),
    codecs.DATE: st.dates().map(str) | st.sampled_from(["infinity", "0044-03-15 BC"]),
    codecs.TIMESTAMP: st.datetimes().map(str)
    | st.sampled_from(["-infinity", "0044-03-15 00:00:00 BC"]),
    codecs.TIMESTAMPTZ: st.datetimes().map(lambda v: f"{v}+00") | st.just("infinity"),
    codecs.UUID: st.uuids().map(str),
    codecs.JSON: text.map(lambda v: f'{{"a": "{v}"}}'),
    codecs.JSONB: text,
    codecs.OID: st.integers(0, 2**32 - 1).map(str),
    codecs.TIME: st.times().map(str) | st.just("24:00:00"),
    codecs.TIMETZ: st.times().map(lambda v: f"{v}+15:59"),
    codecs.INTERVAL: st.sampled_from(["P-1Y2M3DT-4H5M6.789012S", "PT0S", "infinity"]),
    codecs.BIT: st.sampled_from(["0", "101"]),
    codecs.VARBIT: st.sampled_from(["", "101"]),
    MOOD: text,
    PRICE: st.sampled_from(["0.00", "-9999.99", "NaN"]),
    INT4S: st.sampled_from(["{}", "{1,NULL}", "{{1},{2}}", "[0:1]={1,2}"]),
    TEXTS: st.sampled_from(['{"a b",NULL,"NULL"}', '{{"\\"","\\\\"},{"",x}}']),
    FLOAT8S: st.sampled_from(["{-0,NaN,1e-05}", "{}"]),
    BOXES: st.sampled_from(["{(1,1),(0,0);(3,3),(2,2)}", "{NULL;(1,1),(0,0)}"]),
}


def test_every_supported_type_is_tried():
    assert set(VALUES) == {*codecs.CODECS, *WIRES, MOOD}
    assert {oid for oid, _ in ALL_TYPES.values()} == set(VALUES)


def one_by_one(encoder, rows):
    """Records of a load and of inserts, from the encoder of single rows."""
    return [encoder.snapshot_row(row, LOAD) for row in rows] + [
        encoder.insert(row, TRANSACTION, ordinal) for ordinal, row in enumerate(rows, 250)
    ]


def in_a_batch(encoder, rows, batch=None):
    """The same from the batch encoder."""
    batch = batch or BatchEncoder(encoder)
    columns = list(zip(*rows, strict=True))
    keys, values = batch.snapshot_rows(columns, LOAD)
    headers = encoder.headers(LOAD.snapshot_position())
    loaded = [(key, value, headers) for key, value in zip(keys, values, strict=True)]
    return loaded + list(zip(*batch.inserts(columns, TRANSACTION, 250), strict=True))


SCHEMA = table_schema(
    *((f'c%{oid}"é', oid) for oid in VALUES), key=(f'c%{codecs.TEXT}"é', f'c%{codecs.INT4}"é')
)
_keys = {SCHEMA.columns[i].type_oid for i in SCHEMA.key_indexes}
rows = st.lists(
    st.tuples(
        *(
            values.map(str.encode) if oid in _keys else st.none() | values.map(str.encode)
            for oid, values in VALUES.items()
        )
    ),
    min_size=1,
    max_size=4,
)


@given(rows)
def test_a_batch_gives_the_bytes_of_the_stream_s_encoder(rows):
    encoder = RowEncoder(SCHEMA, ORIGIN)
    assert in_a_batch(encoder, rows) == one_by_one(encoder, rows)


def test_one_row_of_all_types():
    encoder = RowEncoder(all_types_schema(), ORIGIN)
    rows = [all_types_row()]
    assert in_a_batch(encoder, rows) == one_by_one(encoder, rows)


def test_batches_of_one_encoder_do_not_disturb_each_other():
    encoder = RowEncoder(table_schema(("id", codecs.INT4), ("t", codecs.TEXT)), ORIGIN)
    batch = BatchEncoder(encoder)
    batches = ([(b"1", b"a")], [(b"2", None)], [(b"3", b'"')], [(b"4", b"a"), (b"5", b"b")])
    for rows in batches:
        assert in_a_batch(encoder, rows, batch) == one_by_one(encoder, rows)


_MOMENTS = [
    "2024-01-01 00:00:00.123456",
    "2024-01-01 00:00:00",
    "2024-12-31 23:59:59.5",
    "10000-01-01 00:00:00.12345",
    "99999-01-01 00:00:00",
    "0044-03-15 00:00:00.123 BC",
    "0044-03-15 00:00:00 BC",
    "0044-03-15 00:00:00.123456 BC",
    "infinity",
    "-infinity",
]


def _in_utc(moment):
    if "infinity" in moment:
        return moment
    return moment.replace(" BC", "+00 BC") if "BC" in moment else moment + "+00"


@pytest.mark.parametrize(
    "moments", [*itertools.combinations_with_replacement(_MOMENTS, 2), _MOMENTS]
)
def test_timestamps_of_whatever_form(moments):
    schema = table_schema(("id", codecs.INT4), ("a", codecs.TIMESTAMP), ("b", codecs.TIMESTAMPTZ))
    encoder = RowEncoder(schema, ORIGIN)
    rows = [(b"%d" % i, m.encode(), _in_utc(m).encode()) for i, m in enumerate(moments)]
    assert in_a_batch(encoder, rows) == one_by_one(encoder, rows)


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=4))
@example([b"\xc3", b"\xa9"])
@example([b"a", b"\xed\xa0\x80"])
def test_text_that_is_not_utf8_is_refused_in_either_way(values):
    encoder = RowEncoder(table_schema(("id", codecs.INT4), ("note", codecs.TEXT)), ORIGIN)
    rows = [(b"%d" % i, value) for i, value in enumerate(values)]
    try:
        expected = one_by_one(encoder, rows)
    except BadValue as refusal:
        with pytest.raises(BadValue) as refused:
            in_a_batch(encoder, rows)
        assert str(refused.value) == str(refusal)
        assert refused.value.column == "note"
    else:
        assert in_a_batch(encoder, rows) == expected


@pytest.mark.parametrize("type_oid", [codecs.INT4, codecs.TEXT, codecs.UUID, codecs.BYTEA])
def test_a_key_without_a_value_is_refused(type_oid):
    encoder = RowEncoder(table_schema(("id", type_oid), ("t", codecs.TEXT)), ORIGIN)
    with pytest.raises(BadValue) as refused:
        in_a_batch(encoder, [(b"\\x00", b"a"), (None, b"b")])
    assert refused.value.column == "id"
