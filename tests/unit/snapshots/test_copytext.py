import pytest

from cdc.errors import ProtocolViolation
from snapshots.copytext import parse_columns, unescape


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"1\ta", [b"1", b"a"]),
        (b"", [b""]),
        (b"\t", [b"", b""]),
        (rb"\N", [None]),
        (rb"\N" + b"\t\t" + rb"\N", [None, b"", None]),
        (rb"\\N", [rb"\N"]),
        (rb"\\", [b"\\"]),
        (rb"\\\\N", [rb"\\N"]),
        (rb"a\tb\nc\rd\be\ff\vg", [b"a\tb\nc\rd\be\ff\vg"]),
        (rb"\\t", [rb"\t"]),
        (rb"\.", [b"."]),
        (rb"\\.", [rb"\."]),
        (rb"\x41\101\x9g\0", [b"AA\tg\0"]),
        (rb"\xg\8", [b"xg8"]),
        ("é😀\u2028".encode(), ["é😀\u2028".encode()]),
    ],
)
def test_lines(line, row):
    assert parse_columns(line + b"\n", len(row)) == [[value] for value in row]


def test_octal_wraps_as_the_server_reads_it():
    assert unescape(rb"\777") == b"\xff"
    assert unescape(rb"\1012") == b"A2"


def test_blocks_of_many_lines():
    assert parse_columns(b"", 2) == [[], []]
    assert parse_columns(b"1\ta\n2\tb\n", 2) == [[b"1", b"2"], [b"a", b"b"]]
    assert parse_columns(b"1\t\\N\n2\tb\n", 2) == [[b"1", b"2"], [None, b"b"]]
    assert parse_columns(b"\n\n", 1) == [[b"", b""]]


@pytest.mark.parametrize(
    "block", [b"1\ta", b"1\n", b"1\ta\tb\n", b"1\ta\n2\n", b"1\t\\N\n2\n", b"1\n2\ta\tb\n"]
)
def test_a_torn_or_uneven_block_is_refused(block):
    with pytest.raises(ProtocolViolation) as refused:
        parse_columns(block, 2)
    assert refused.value.code == "bad_copy_data"
