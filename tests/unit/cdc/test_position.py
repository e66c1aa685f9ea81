import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import LogError
from cdc.position import (
    Position,
    format_lsn,
    frontier,
    parse_lsn,
    snapshot_position,
)

positions = st.builds(
    Position,
    st.integers(0, 0xFFFF),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
)
lsns = st.integers(0, 2**64 - 1)


@given(positions)
def test_text_reads_back(position):
    assert Position.parse(str(position)) == position
    assert len(str(position)) == 4 + 1 + 16 + 1 + 8


@given(positions, positions)
def test_text_sorts_as_positions_do(a, b):
    assert (a < b) == (str(a) < str(b))


@given(lsns)
def test_lsn_reads_back(lsn):
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_lsn_text_is_postgres_own():
    assert format_lsn(0x16_B374D848) == "16/B374D848"


@given(lsns.filter(lambda x: 1 < x < 2**64 - 2), st.integers(1, 2**32 - 1))
def test_a_commit_that_starts_at_the_frontier_is_after_it(end_lsn, ordinal):
    """The next commit record can start exactly at the previous commit's end."""
    assert Position(0, end_lsn, ordinal) >= frontier(0, end_lsn)
    assert Position(0, end_lsn - 1, ordinal) < frontier(0, end_lsn)


@given(lsns.filter(lambda x: 1 < x < 2**64 - 2), st.integers(1, 2**32 - 1))
def test_snapshot_rows_sort_below_the_stream_and_the_first_frontier(point, ordinal):
    row = snapshot_position(0, point)
    assert row < frontier(0, point) <= Position(0, point, ordinal)


FORM = re.compile(r"[0-9A-F]{4}-[0-9A-F]{16}-[0-9A-F]{8}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0-0-0",
        "0000-00000000016B3780-0000000g",
        "0000-00000000016b3780-00000001",
        "0000-00000000016B3780-00000001 ",
        "0000-00000000016B3780-000000001",
        "0000-00000000016B3780-000000  ",
        "0000 00000000016B3780-00000001",
        "0000-00000000016B3780_00000001",
        "+000-00000000016B3780-00000001",
        "00_0-00000000016B3780-00000001",
        "\u0660\u0660\u0660\u0660-00000000016B3780-00000001",
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(LogError, match="not a position") as refused:
        Position.parse(text)
    assert refused.value.code == "bad_position"


@st.composite
def almost_positions(draw):
    text = list(str(draw(positions)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text) - 1))
        text[at] = draw(st.sampled_from([*"09AFaf-_+ \t\nxg\u0663", "", "00"]) | st.characters())
    return "".join(text)


@given(almost_positions())
def test_text_is_read_exactly_if_it_has_the_form(text):
    if FORM.fullmatch(text):
        read = Position.parse(text)
        assert type(read) is Position
        assert str(read) == text
    else:
        with pytest.raises(LogError):
            Position.parse(text)


@pytest.mark.parametrize("text", ["", "16", "16/", "x/1", "123456789/0"])
def test_other_lsns_are_refused(text):
    with pytest.raises(LogError):
        parse_lsn(text)
