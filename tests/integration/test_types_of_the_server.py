"""Every type that the server knows: snapshot and stream write equal bytes, and the text returns."""

from contextlib import closing

import orjson
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc import codecs
from cdc.batch_encoder import BatchEncoder
from cdc.envelope import Origin, RowEncoder, TransactionFields
from cdc.load import ChunkPlan
from cdc.names import TableId
from cdc.position import Position
from cdc.session_settings import OPTIONS
from connectors.postgres.catalog import read_tables
from connectors.postgres.messages import Insert
from connectors.postgres.pgoutput import decode
from snapshots.copytext import parse_columns
from snapshots.source import ChunkCopy, open_session
from tests.support.pgtypes import WITHOUT_INPUT, create_types, fill

ORIGIN = Origin("0", "shop", "db")


def test_every_type_of_the_server(database):
    with psycopg.connect(**database, autocommit=True, options="-c timezone=Asia/Tokyo") as writer:
        kinds = create_types(writer)
        writer.execute("create publication p for all tables")
        writer.execute("select pg_create_logical_replication_slot('types', 'pgoutput')")
        without = {k.name for i, k in enumerate(kinds) if not fill(writer, k, i)}
    assert without == WITHOUT_INPUT & {k.name for k in kinds}
    assert len(kinds) > 80
    tables = [TableId("public", f"t{i}") for i in range(len(kinds))]
    with closing(open_session(database, "cdc types")) as session:
        definitions = read_tables(session, tables)
        encoders = {
            d.relid: RowEncoder(d.schema(1, Position(0, 0, 0)), ORIGIN)
            for d in definitions.values()
        }
        copied = {relid: snapshot(session, encoder) for relid, encoder in encoders.items()}
    streamed: dict[int, list[tuple[bytes, bytes]]] = {relid: [] for relid in encoders}
    transaction = TransactionFields(0, 1, 7, 1, 1, snapshot=False)
    with psycopg.connect(**database, options=OPTIONS, client_encoding="UTF8") as session:
        messages = session.execute(
            "select data from pg_logical_slot_get_binary_changes('types', null, null,"
            " 'proto_version', '1', 'publication_names', 'p')"
        ).fetchall()
    for (data,) in messages:
        message = decode(data)
        if isinstance(message, Insert):
            key, value, _ = encoders[message.relid].insert(message.new, transaction, 1)
            streamed[message.relid].append((key, after(value)))
    assert copied == streamed


def snapshot(session, encoder):
    """Records of a table's rows by COPY; every value's text must come back from its JSON."""
    copy = ChunkCopy(session, encoder.schema, ChunkPlan.whole(1000, 1), 0)
    columns = parse_columns(b"".join(copy.blocks()), len(encoder.schema.columns))
    load = TransactionFields(0, 1, None, 1, 1, snapshot=True)
    keys, values = BatchEncoder(encoder).snapshot_rows(columns, load)
    for row, value in zip(zip(*columns, strict=True), values, strict=True):
        image = orjson.loads(value)["after"]
        for column, text in zip(encoder.schema.columns, row, strict=True):
            back = image[column.name]
            if text is not None:
                back = codecs.codec_of(column).to_text(back).encode()
            assert back == text, column.type
    return [(key, after(value)) for key, value in zip(keys, values, strict=True)]


def after(value):
    start = value.index(b'"after":')
    return value[start : value.index(b',"source":{"version"')]


@pytest.fixture
def session(database):
    with psycopg.connect(**database, autocommit=True, options=OPTIONS) as connection:
        yield connection


ELEMENTS = {
    "float8": st.floats().map(repr),
    "float4": st.floats(width=32).map(repr),
    "numeric": st.decimals(allow_nan=True, allow_infinity=False).map(
        lambda d: "NaN" if d.is_nan() else f"{d}"
    ),
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
    | st.sampled_from(["NULL", "null", "", " ", "\\", '"', "{", ",", "\v"]),
    "timestamp": st.datetimes().map(str) | st.sampled_from(["infinity", "0044-03-15 BC"]),
    "timestamptz": st.datetimes().map(str) | st.sampled_from(["-infinity", "10000-01-01"]),
    "bytea": st.binary(max_size=4).map(lambda b: "\\x" + b.hex()),
    "bool": st.sampled_from(["t", "f"]),
    "json": st.text(max_size=5).map(lambda t: orjson.dumps(t.replace("\0", "")).decode()),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_texts_of_arrays_come_back_from_their_json(session, name):
    oid = session.execute("select %s::regtype::oid::int", (name,)).fetchone()[0]
    codec = codecs.codec_of(array_column(oid))
    values = st.none() | ELEMENTS[name]

    @settings(max_examples=60)
    @given(st.lists(st.lists(values, min_size=3, max_size=3), max_size=8), st.booleans())
    def check(rows, flat):
        nested = [v for row in rows for v in row] if flat else rows
        ((text,),) = session.execute(f"select %s::text[]::{name}[]::text", (nested,)).fetchall()
        assert codec.to_text(orjson.loads(codec.to_json(text.encode()))) == text

    check()


def array_column(oid):
    from cdc.schema import Column, WireType

    return Column(1, "c", 1, -1, "any", False, wire=WireType(oid, -1, array=True))
