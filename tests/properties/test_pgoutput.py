"""The decoder against any bytes: a message that is right, or ProtocolViolation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolViolation
from connectors.postgres.messages import Message
from connectors.postgres.pgoutput import decode
from tests.properties.pgoutput_strategies import messages
from tests.support.pgoutput_encoder import encode


def decoded_or_refused(data):
    """None if refused; whatever is accepted must encode to the very bytes."""
    try:
        message = decode(data)
    except ProtocolViolation as refused:
        assert refused.code in {"malformed_message", "unknown_message", "binary_value"}
        return None
    assert isinstance(message, Message)
    assert encode(message) == data
    return message


@given(messages)
def test_round_trip(message):
    data = encode(message)
    assert decode(data) == message
    assert decode(memoryview(data)) == message
    assert decode(b"header" + data, 6) == message


@given(messages, st.data())
def test_every_cut_is_refused(message, data):
    whole = encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolViolation):
        decode(whole[:cut])


@given(messages, st.binary(min_size=1, max_size=5))
def test_bytes_after_the_end_are_refused(message, more):
    with pytest.raises(ProtocolViolation):
        decode(encode(message) + more)


@given(messages, st.data())
def test_a_corrupted_byte_is_refused_or_a_message(message, data):
    whole = bytearray(encode(message))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    decoded_or_refused(bytes(whole))


@given(messages, messages, st.data())
def test_spliced_messages_are_refused_or_a_message(one, other, data):
    first, second = encode(one), encode(other)
    cut = data.draw(st.integers(0, len(first)))
    skip = data.draw(st.integers(0, len(second)))
    decoded_or_refused(first[:cut] + second[skip:])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_a_message(data):
    decoded_or_refused(data)


@given(st.sampled_from(b"BCORYIUDTM"), st.binary(max_size=60))
def test_any_bytes_after_a_known_tag_are_refused_or_a_message(tag, data):
    decoded_or_refused(bytes([tag]) + data)
