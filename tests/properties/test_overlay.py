"""Replica at any P, overlaid with the log's tail up to any F, is what the source held at F."""

import tempfile

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc import codecs
from cdc.lake import KEY_COLUMN, LSN_COLUMN
from cdc.names import TableId
from cdc.query.engine import lock, open_connection, run
from cdc.query.overlay import TableOverlay
from cdc.query.statement import TableName
from cdc.query.tail import fold_tail
from tests.support.histories import key_of, random_history
from tests.support.replicas import opened_replica
from tests.support.schemas import table_schema

NAME = TableName("shop", TableId("public", "orders"))
SIMPLE = table_schema(("id", codecs.INT8), ("a", codecs.INT8), ("big", codecs.TEXT))
# A key that is not one simple column is compared by its JSON.
COMPOSITE = table_schema(
    ("id", codecs.INT8), ("a", codecs.INT8), ("big", codecs.TEXT), key=("id", "a")
)
FIELDS = [("id", pa.int64()), ("a", pa.int64()), ("big", pa.string()), (LSN_COLUMN, pa.int64())]

seeds = st.integers(0, 2**32)
slow = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def write_replica(folder, position, rows, encoded, files):
    """The rows in a few files, some of which may be empty, and as opened at ``position``."""
    fields = [*FIELDS, (KEY_COLUMN, pa.string())] if encoded else FIELDS
    held = [
        {**row, LSN_COLUMN: 1, **({KEY_COLUMN: key.decode()} if encoded else {})}
        for key, row in rows.items()
    ]
    kinds = {"id": "BIGINT", "a": "BIGINT", "big": "STRING", LSN_COLUMN: "BIGINT"}
    columns = {**kinds, KEY_COLUMN: "STRING"} if encoded else kinds
    return opened_replica(folder, held, fields, columns, position, files)


def answer(history, schema, replica, end):
    """What ``select *`` gives."""
    start = None if replica is None else replica.position
    tail = fold_tail(history.records, schema, end, start, history.newest_truncate(end), {1: schema})
    with open_connection() as connection:
        overlay = TableOverlay(connection, 0, NAME, schema, replica)
        overlay.create(tail)
        lock(connection, overlay.files)
        names, _, rows = run(connection, "select * from shop.public.orders")
        _, _, [(count,)] = run(connection, "select count(*) from shop.public.orders")
    assert names == ("id", "a", "big")
    assert count == len(rows)
    return sorted(rows)


def expected(rows):
    return sorted((row["id"], row["a"], row["big"]) for row in rows.values())


@slow
@given(seeds, st.data(), st.integers(1, 3))
def test_overlay_is_the_source_at_the_frontier(seed, data, files):
    history = random_history(seed)
    moments = [at for at, _ in history.states]
    first = data.draw(st.integers(0, len(moments) - 1))
    last = data.draw(st.integers(first, len(moments) - 1))
    rows = history.state_at(moments[first])
    with tempfile.TemporaryDirectory() as folder:
        replica = write_replica(folder, moments[first], rows, encoded=False, files=files)
        found = answer(history, SIMPLE, replica, moments[last])
    assert found == expected(history.state_at(moments[last]))


@slow
@given(seeds, st.data())
def test_without_a_replica_the_log_is_enough(seed, data):
    history = random_history(seed)
    at = data.draw(st.sampled_from([at for at, _ in history.states]))
    assert answer(history, SIMPLE, None, at) == expected(history.state_at(at))


@slow
@given(seeds, st.data())
def test_encoded_keys(seed, data):
    """The same with the replica's _cdc_key; histories have one key column, so bytes stand in."""
    history = random_history(seed)
    moments = [at for at, _ in history.states]
    first = data.draw(st.integers(0, len(moments) - 1))
    rows = history.state_at(moments[first])
    assert all(key == key_of(row) for key, row in rows.items())
    with tempfile.TemporaryDirectory() as folder:
        replica = write_replica(folder, moments[first], rows, encoded=True, files=2)
        found = answer(history, COMPOSITE, replica, moments[-1])
    assert found == expected(history.state_at(moments[-1]))
