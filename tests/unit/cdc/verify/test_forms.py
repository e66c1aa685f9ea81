"""Canonical texts: different rows never have the same one."""

from hypothesis import given
from hypothesis import strategies as st

from cdc import codecs
from cdc.schema import ARRAY
from cdc.verify.forms import (
    ESCAPE,
    NULL_MARK,
    RANGES,
    SEPARATOR,
    digest,
    has_integer_key,
    joined,
    range_of,
    shown,
)
from tests.support.schemas import FLOAT8S, column, table_schema
from tests.support.schemas import TEXTS as TEXTS_OID

TEXTS = st.none() | st.text(st.sampled_from([ESCAPE, ",", "N", "a"]), max_size=5)
ROWS = st.lists(TEXTS, min_size=3, max_size=3).map(tuple)


@given(ROWS, ROWS)
def test_rows_have_the_same_text_only_if_they_are_the_same(one, other):
    assert (joined(one) == joined(other)) == (one == other)
    assert (digest(one) == digest(other)) == (one == other)


def test_null_is_no_text():
    assert joined([None, "N", ""]) != joined(["", "N", None])
    assert joined([None]) not in (joined([""]), joined(["N"]), joined([ESCAPE + "N"]))


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_integer_key_has_a_range(number):
    schema = table_schema(("id", codecs.INT8))
    assert has_integer_key(schema)
    assert 0 <= range_of(schema, (str(number),)) < RANGES


def test_integer_keys_spread_though_they_share_their_low_bits():
    schema = table_schema(("id", codecs.INT8))
    for step in (1, 4096, 1 << 22, 1 << 42):
        numbers = range(0, step * 4096, step)
        found = {range_of(schema, (str(number),)) for number in numbers}
        assert len(found) > 2000, step


def test_other_keys_spread_by_their_text():
    schema = table_schema(("id", codecs.TEXT), ("n", codecs.INT4), key=("id", "n"))
    assert not has_integer_key(schema)
    found = {range_of(schema, ("k", str(number))) for number in range(4096)}
    assert len(found) > 2000 and max(found) < RANGES


def test_what_is_shown():
    assert shown(column(1, "c", codecs.INT8), "-5") == -5
    assert shown(column(1, "c", codecs.BOOL), "true") is True
    assert shown(column(1, "c", codecs.FLOAT8), "3ff8000000000000") == 1.5
    assert repr(shown(column(1, "c", codecs.FLOAT8), "8000000000000000")) == "-0.0"
    assert shown(column(1, "c", codecs.FLOAT8), "fff0000000000000") == "-Infinity"
    assert shown(column(1, "c", codecs.FLOAT4), "NaN") == "NaN"
    assert shown(column(1, "c", codecs.FLOAT4), "3fc00000") == 1.5
    assert shown(column(1, "c", codecs.BYTEA), "00ff") == "\\x00ff"
    assert shown(column(1, "c", codecs.TEXT), None) is None
    assert shown(column(1, "c", codecs.TEXT), "é") == "é"


@given(st.lists(TEXTS))
def test_an_array_is_shown_by_its_elements(parts):
    text = "".join(joined([part]) + SEPARATOR for part in parts)
    array = column(1, "c", TEXTS_OID, policy=ARRAY)
    assert shown(array, text) == parts
    floats = column(1, "c", FLOAT8S, policy=ARRAY)
    assert shown(floats, f"3ff8000000000000{SEPARATOR}{NULL_MARK}{SEPARATOR}") == [1.5, None]
    assert shown(array, None) is None
