"""Rows of a table as the source, the log and the lake hold them, in comparable form.

The source is read by psycopg in its own types, not by our codecs, so that an error in them shows.
"""

from __future__ import annotations

import struct
from collections import Counter

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql

from cdc import codecs
from cdc.config import load_config
from cdc.envelope import parse_record
from cdc.fold import fold
from cdc.log.reader import LogReader
from cdc.names import lake_folder
from cdc.position import Position
from cdc.query.run import run_query
from cdc.tally import Tally

_AS_TEXT = (codecs.UUID, codecs.JSON, codecs.JSONB)


def normal(column, value):
    """A value that compares equal exactly when the column's values are the same."""
    if value is None:
        return None
    if column.type_oid == codecs.FLOAT4:
        return repr(struct.unpack("f", struct.pack("f", value))[0])
    if column.type_oid == codecs.FLOAT8:
        return repr(value)
    if codecs.delta_type(column).startswith("DECIMAL"):
        return value.normalize()
    return value


def by_key(schema, rows):
    """Rows (dicts of Python values) by key, normalised; a key seen twice is a failure.

    Without a key, by all of their values and the number of the copy.
    """
    keyed = {}
    copies: Counter[object] = Counter()
    for row in rows:
        held = {c.name: normal(c, row[c.name]) for c in schema.columns}
        key: tuple[object, ...] = tuple(held[name] for name in schema.key)
        if schema.counted:
            values = tuple(held.values())
            copies[values] += 1
            key = (values, copies[values])
        assert key not in keyed, f"two rows of one key in {schema.id}"
        keyed[key] = held
    return keyed


def source_rows(conninfo, schema):
    """What Postgres holds."""
    fields = [
        sql.SQL("{}::text").format(sql.Identifier(c.name))
        if c.type_oid in _AS_TEXT or _is_text_numeric(c)
        else sql.Identifier(c.name)
        for c in schema.columns
    ]
    query = sql.SQL("select {} from {}{} where {}").format(
        sql.SQL(", ").join(fields),
        sql.SQL("" if schema.partitioned else "only "),
        sql.Identifier(schema.schema, schema.table),
        sql.SQL(schema.row_filter or "true"),
    )
    with psycopg.connect(**conninfo, options="-c TimeZone=UTC") as connection:
        found = connection.execute(query).fetchall()
    return by_key(schema, (dict(zip(schema.column_names, row, strict=True)) for row in found))


def _is_text_numeric(column):
    return column.type_oid == codecs.NUMERIC and codecs.delta_type(column) == "STRING"


def log_rows(bootstrap, source, table, prefix=""):
    """The table's whole topic, folded up to the newest frontier; and its schema."""
    with LogReader(bootstrap, topic_prefix=prefix) as reader:
        frontier = reader.frontier(source)
        assert frontier is not None, "nothing was captured"
        control = reader.control_state(source, frontier.record.control_end)
        record = control.tables[table]
        schema = control.schema_at(table, record.load, frontier.position)
        assert schema is not None
        schema = schema.derived()
        truncate = control.newest_truncate(table, record.load, frontier.position)
        ends = frontier.ends[record.topic]
        if schema.counted:
            tally = Tally(f"{source}.{table}", record.topic, frontier.position, truncate)
            return schema, by_key(schema, _counted(reader, schema, record.topic, ends, tally))
        records = [
            found
            for partition, end in ends.items()
            for found in reader.records(record.topic, partition, 0, end)
        ]
    assert_positions_grow(records)
    rows = (
        _row(schema, outcome.row)
        for outcome in fold(
            records, frontier.position, truncate, columns=schema.column_names
        ).values()
        if outcome.row is not None
    )
    return schema, by_key(schema, rows)


def _counted(reader, schema, topic, ends, tally):
    """Every copy of every row of a table without a key."""
    for partition, end in ends.items():
        for batch in reader.raw_records(topic, partition, 0, end):
            tally.add(partition, batch)
    for partition, (offset, *record) in tally.copies({}):
        yield _row(schema, parse_record(topic, partition, offset, *record).after)


def _row(schema, row):
    return {c.name: _value(c, row.get(c.name)) for c in schema.columns}


def _value(column, value):
    return None if value is None else codecs.from_json(column)(value)


def assert_positions_grow(records):
    """Per key, the position never goes back with the offset; keys keep their partition."""
    newest: dict[bytes, tuple[int, Position]] = {}
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        partition, position = newest.get(record.key, (record.partition, record.position))
        assert partition == record.partition, "a key changed its partition"
        assert position <= record.position, "a key's position went back"
        newest[record.key] = (record.partition, record.position)


def assert_same(expected, found, what):
    """Both sides have the same rows; the message names keys and columns only."""
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    assert not missing, f"{what}: {len(missing)} keys are missing, such as {min(missing)}"
    assert not extra, f"{what}: {len(extra)} keys too many, such as {min(extra)}"
    for key, row in expected.items():
        wrong = [name for name, value in row.items() if found[key][name] != value]
        assert not wrong, f"{what}: key {key} differs in {wrong}"


def assert_log_is_source(pipeline, tables):
    """Every table's topic, folded, has the rows that Postgres has."""
    for table in tables:
        schema, rows = log_rows(pipeline.bootstrap, pipeline.source, table, pipeline.prefix)
        assert_same(source_rows(pipeline.conninfo, schema), rows, f"log of {table}")


def newest_schema(pipeline, table):
    """The table's schema as the log has it."""
    with LogReader(pipeline.bootstrap, topic_prefix=pipeline.prefix) as reader:
        view = reader.frontier(pipeline.source)
        assert view is not None, "nothing was captured"
        control = reader.control_state(pipeline.source, view.record.control_end)
    return control.newest_schema(table, control.tables[table].load)


def delta_rows(pipeline, schema):
    """The replica as another engine reads it (deltalake's own)."""
    path = lake_folder(str(pipeline.lake), pipeline.source, *schema.id)
    found = QueryBuilder().register("t", DeltaTable(path)).execute("select * from t")
    return by_key(schema, pa.table(found.read_all()).to_pylist())


def query_rows(pipeline, schema):
    """The table as ``cdc query`` answers."""
    sql = f"select * from {pipeline.source}.{schema.id}"
    found = run_query(load_config(pipeline.config_path), sql)
    assert set(found.columns) == set(schema.column_names)
    return by_key(schema, (dict(zip(found.columns, row, strict=True)) for row in found.rows))


def assert_delta_is_source(pipeline, tables):
    """Every replica has the rows that Postgres has, value by value."""
    for table in tables:
        schema = newest_schema(pipeline, table)
        expected = source_rows(pipeline.conninfo, schema)
        assert_same(expected, delta_rows(pipeline, schema), f"replica of {table}")


def assert_query_is_source(pipeline, tables):
    """``cdc query`` gives the rows that Postgres has, value by value."""
    for table in tables:
        schema = newest_schema(pipeline, table)
        expected = source_rows(pipeline.conninfo, schema)
        assert_same(expected, query_rows(pipeline, schema), f"query of {table}")
