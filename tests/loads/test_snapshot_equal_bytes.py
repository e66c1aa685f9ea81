"""Snapshot and stream write the same key and the same ``after`` for the same row."""

from contextlib import closing

import psycopg

from cdc.batch_encoder import BatchEncoder
from cdc.envelope import Origin, RowEncoder, TransactionFields
from cdc.load import ChunkPlan, LoadTask
from cdc.names import TableId
from cdc.position import Position
from cdc.session_settings import OPTIONS
from connectors.postgres.catalog import read_tables
from connectors.postgres.messages import Insert
from connectors.postgres.pgoutput import decode
from snapshots.copytext import parse_columns
from snapshots.source import ChunkCopy, begin_chunk, end_chunk, open_session
from tests.support.export import EPOCH

TABLE = TableId("public", "t")
POINT = 0x1000000
ALL_TYPES = """
create table t (
    id int primary key, b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric,
    n2 numeric(12,3), tx text, v varchar(40), c char(6), y bytea, d date, ts timestamp,
    tz timestamptz, u uuid, j json, jb jsonb);
insert into t (id) values (0);
insert into t values
(1, true, -32768, 9223372036854775807, 0.1, 0.1, 1.500, 1.5, '', '', '', '', '2024-02-29',
 '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59.1+05:30',
 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"a":  1.0, "a": 2}', '{"b": 1.0, "a": "\\u00e9"}'),
(2, false, 0, -9223372036854775808, '-0', '-0', 'NaN', 'NaN', E'\\b\\f\\n\\r\\t\\x0b\\\\"\\x01',
 'é😀', 'é', '\\x00ff0a5c', 'infinity', 'infinity', 'infinity', null, '"\\u0000"', '"x\\\\y"'),
(3, null, 1, 1, 'NaN', 'NaN', 'Infinity', 0, E'\\\\N', 'NULL', 'a  b', null, '-infinity',
 '-infinity', '-infinity', null, 'null', 'null'),
(4, null, 1, 1, 'Infinity', '-Infinity', '-Infinity', -0.001, U&'\\2028\\FFFF', E'\\\\', E'\\t',
 null, '0044-03-15 BC', '0044-03-15 12:00:00 BC', '0044-03-15 12:00:00+00 BC', null, '[]', '[]'),
(5, null, 1, 1, 1e-45, 5e-324, 1e-20, 99999.999, repeat('x', 10000), '%b', '100%', null,
 '10000-01-01', '10000-01-01 00:00:00.5', '9999-12-31 23:59:59.999999+00', null, '1e400', '1e400'),
(6, null, 1, 1, 3.4028235e38, 1.7976931348623157e308, 1e100, 1, E'a\\nb\\x7f', 'x', 'x',
 '\\xdeadbeef', '0001-01-01', '0001-01-01 00:00:00', '2024-03-10 02:30:00 America/New_York', null,
 '{"\\\\": "\\""}', '{}')
"""


def test_snapshot_and_stream_write_equal_bytes(database):
    """The same rows through COPY and through pgoutput."""
    create, *inserts = ALL_TYPES.split(";\n")
    with psycopg.connect(**database, autocommit=True, options="-c timezone=Asia/Tokyo") as writer:
        writer.execute(create)
        writer.execute("create publication p for table t")
        writer.execute("select pg_create_logical_replication_slot('equal', 'pgoutput')")
        for insert in inserts:
            writer.execute(insert)
    with closing(open_session(database, "cdc equal snapshot")) as session:
        schema = read_tables(session, [TABLE])[TABLE].schema(1, Position(EPOCH, 0, 0))
        ((filenode,),) = session.execute("select pg_relation_filenode('public.t')").fetchall()
        plan = ChunkPlan.whole(1000, 1)
        begin_chunk(session, LoadTask(schema, filenode, "t", 1, POINT, plan, (0,)))
        encoder = RowEncoder(schema, Origin("0", "shop", "db"))
        load = TransactionFields(EPOCH, POINT - 1, None, 1, 1, snapshot=True)
        copy = ChunkCopy(session, schema, plan, 0)
        batch = parse_columns(b"".join(copy.blocks()), len(schema.columns))
        end_chunk(session)
        assert copy.rows == len(batch[0]) == 7
        keys, values = BatchEncoder(encoder).snapshot_rows(batch, load)
    with psycopg.connect(**database, options=OPTIONS, client_encoding="UTF8") as session:
        messages = session.execute(
            "select data from pg_logical_slot_get_binary_changes('equal', null, null,"
            " 'proto_version', '1', 'publication_names', 'p')"
        ).fetchall()
    sent = [m for (data,) in messages if isinstance(m := decode(data), Insert)]
    transaction = TransactionFields(EPOCH, 1, 7, 1, 1, snapshot=False)
    streamed = [encoder.insert(m.new, transaction, i) for i, m in enumerate(sent, 1)]
    assert keys == [key for key, _, _ in streamed]
    assert list(map(after, values)) == [after(value) for _, value, _ in streamed]


def after(value):
    start = value.index(b'"after":')
    return value[start : value.index(b',"source":{"version"')]
