"""Bytes that must be refused, and by which code."""

import pytest

from cdc.errors import ProtocolViolation
from cdc.unsent import UNSENT
from connectors.postgres.messages import Begin, Insert, Update
from connectors.postgres.pgoutput import decode
from tests.support.pgoutput_encoder import int16, int32, int64, row, string

RELID = int32(16385)
ROW = row([b"1"])


def test_values_of_every_kind():
    data = b"I" + RELID + b"N" + b"\0\4" + b"t" + int32(2) + b"ab" + b"n" + b"u" + b"t" + int32(0)
    assert decode(data) == Insert(16385, (b"ab", None, UNSENT, b""))


def test_times_count_from_the_unix_epoch():
    data = b"B" + int64(7) + int64(-1, signed=True) + int32(2**32 - 1)
    assert decode(data) == Begin(7, 946_684_799_999_999, 2**32 - 1)


def test_lsns_and_oids_are_unsigned():
    data = b"B" + int64(2**64 - 1) + int64(0) + int32(1)
    assert decode(data) == Begin(2**64 - 1, 946_684_800_000_000, 1)
    assert decode(b"I" + b"\xff" * 4 + b"N" + ROW) == Insert(2**32 - 1, (b"1",))


def test_an_update_without_an_old_tuple_has_none():
    assert decode(b"U" + RELID + b"N" + ROW) == Update(16385, "", None, (b"1",))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"", "malformed_message", id="nothing"),
        pytest.param(b"S" + bytes(5), "unknown_message", id="stream start of protocol 2"),
        pytest.param(b"b" + bytes(24), "unknown_message", id="two phase of protocol 3"),
        pytest.param(b"\0", "unknown_message", id="zero tag"),
        pytest.param(b"I" + RELID + b"N\0\1b" + int32(1) + b"x", "binary_value", id="binary"),
        pytest.param(b"I" + RELID + b"N\0\1x", "malformed_message", id="kind of value"),
        pytest.param(b"I" + RELID + b"K" + ROW, "malformed_message", id="insert of a key"),
        pytest.param(b"I" + RELID + b"N" + int16(65535), "malformed_message", id="columns lack"),
        pytest.param(
            b"I" + RELID + b"N\0\1t" + int32(2**32 - 1) + b"x",
            "malformed_message",
            id="length of -1",
        ),
        pytest.param(
            b"I" + RELID + b"N\0\2t" + int32(6) + b"x" + b"n" * 4,
            "malformed_message",
            id="length beyond the end",
        ),
        pytest.param(b"U" + RELID + b"K" + ROW, "malformed_message", id="update without new"),
        pytest.param(b"U" + RELID + b"K" + ROW + b"O" + ROW, "malformed_message", id="two olds"),
        pytest.param(
            b"U" + RELID + b"O" + row([]) + b"N" + ROW, "malformed_message", id="rows differ"
        ),
        pytest.param(b"D" + RELID + b"N" + ROW, "malformed_message", id="delete of a new row"),
        pytest.param(b"B" + int64(0) + int64(1) + int32(1), "malformed_message", id="no LSN"),
        pytest.param(
            b"C\1" + int64(1) + int64(2) + int64(3), "malformed_message", id="commit flags"
        ),
        pytest.param(
            b"R" + RELID + b"s\0t\0" + b"x" + int16(0), "malformed_message", id="identity"
        ),
        pytest.param(
            b"R" + RELID + b"s\0t\0" + b"d" + int16(1) + b"\2a\0" + int32(23) + int32(0),
            "malformed_message",
            id="column flags",
        ),
        pytest.param(
            b"R" + RELID + b"\xff\0t\0d" + int16(0), "malformed_message", id="name not UTF-8"
        ),
        pytest.param(b"R" + RELID + b"public", "malformed_message", id="name without its end"),
        pytest.param(
            b"T" + int32(2**32 - 1) + b"\0" + RELID, "malformed_message", id="truncate of many"
        ),
        pytest.param(b"T" + int32(1) + b"\4" + RELID, "malformed_message", id="truncate flags"),
        pytest.param(
            b"M\2" + int64(1) + string("p") + int32(0), "malformed_message", id="message flags"
        ),
        pytest.param(
            b"M\0" + int64(1) + string("p") + int32(2) + b"x", "malformed_message", id="content"
        ),
    ],
)
def test_refused(data, code):
    with pytest.raises(ProtocolViolation) as refused:
        decode(data)
    assert refused.value.code == code


def test_no_value_is_in_the_error():
    data = b"I" + RELID + b"N" + row([b"secret"]) + b"secret"
    with pytest.raises(ProtocolViolation) as refused:
        decode(data)
    assert "secret" not in str(refused.value)
