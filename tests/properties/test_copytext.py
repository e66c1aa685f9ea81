"""COPY's text format: what the server prints is read back exactly, whatever the values."""

import re

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshots.copytext import parse_columns, unescape

_ESCAPES = {
    b"\b": rb"\b",
    b"\f": rb"\f",
    b"\n": rb"\n",
    b"\r": rb"\r",
    b"\t": rb"\t",
    b"\v": rb"\v",
    b"\\": rb"\\",
}

# Bytes that mean something to the format come up often.
value = st.lists(st.sampled_from(b"\b\f\n\r\t\v\\Nx0178.") | st.integers(1, 255), max_size=8).map(
    bytes
)
rows = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.none() | value, min_size=width, max_size=width), min_size=1, max_size=6
    )
)


def encode(row):
    """As the server's documentation says that COPY TO does it."""
    fields = [
        rb"\N" if v is None else re.sub(rb"[\b\f\n\r\t\v\\]", lambda m: _ESCAPES[m[0]], v)
        for v in row
    ]
    return b"\t".join(fields) + b"\n"


@given(rows)
def test_what_is_encoded_is_decoded(rows):
    block = b"".join(map(encode, rows))
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert parse_columns(block, len(columns)) == columns


@given(value)
def test_octal_and_hex_forms(data):
    assert unescape(b"".join(b"\\%03o" % b for b in data)) == data
    assert unescape(b"".join(b"\\x%02x" % b for b in data)) == data


@given(st.binary(max_size=20))
def test_any_bytes_give_rows_or_a_named_refusal(data):
    block = data.replace(b"\n", b"") + b"\n"
    columns = block.count(b"\t") + 1
    assert [len(column) for column in parse_columns(block, columns)] == [1] * columns


@pytest.fixture(scope="module")
def server(stack):
    with psycopg.connect(**stack.postgres.conninfo(), autocommit=True) as connection:
        connection.execute("set client_encoding = 'UTF8'")
        connection.execute("create temporary table t (n int, a text, b text, c bytea)")
        yield connection


text = st.none() | st.text(
    st.sampled_from("\b\f\n\r\t\v\\Nx017.\x01\x7f") | st.characters(codec="utf-8", min_codepoint=1),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(text, text, st.none() | st.binary(max_size=6)), min_size=1, max_size=20))
def test_what_the_server_prints_is_what_it_holds(server, values):
    server.execute("truncate t")
    with server.cursor() as cursor:
        cursor.executemany(
            "insert into t values (%s, %s, %s, %s)",
            [(i, *row) for i, row in enumerate(values)],
        )
        with cursor.copy("copy (select * from t order by n) to stdout") as copy:
            block = b"".join(map(bytes, copy))
    expected = [
        [
            b"%d" % i,
            None if a is None else a.encode(),
            None if b is None else b.encode(),
            None if c is None else b"\\x" + c.hex().encode(),
        ]
        for i, (a, b, c) in enumerate(values)
    ]
    assert list(map(list, zip(*parse_columns(block, 4), strict=True))) == expected
