"""Tables without a key as apply folds them in the driver and as a query lays the tail over them."""

import tempfile
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.counted import DIGEST_LENGTH
from cdc.errors import LogError
from cdc.lake import KEY_COLUMN, LSN_COLUMN
from cdc.names import TableId
from cdc.query.engine import lock, open_connection, run
from cdc.query.overlay import TableOverlay
from cdc.query.statement import TableName
from cdc.query.tail import count_tail
from cdc.tally import Tally
from spark_jobs.base import BaseRows
from spark_jobs.fold_driver import fold_in_driver
from spark_jobs.layout import GONE_COLUMN, Layout
from spark_jobs.newest import TooLarge
from spark_jobs.records import Bounds
from tests.support.counted_histories import SCHEMA, actions, played, texts
from tests.support.replicas import opened_replica

NAME = TableName("shop", TableId("public", "t"))
LAYOUT = Layout(SCHEMA, "shop.public.t")
slow = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


class Held(BaseRows):
    """The copies that a replica has, by key."""

    def __init__(self, rows):
        self._rows = rows

    def copies(self, digests):
        found = Counter(key[:DIGEST_LENGTH] for key in self._rows)
        return {digest: found[digest] for digest in digests if digest in found}


class Log:
    """Gives records as the log's reader does."""

    def __init__(self, records):
        self._records = records

    def ranges(self, ranges):
        for offset, (key, value, headers) in enumerate(self._records):
            yield "t", offset % 3, [(offset, key, value, headers)]


def bounds_of(truncates, start, end):
    return Bounds(start, end, max((t for t in truncates if t < end), default=None))


def applied(records, bounds, rows, most_bytes=2**30):
    """The replica's rows after the range, as a MERGE of the driver's fold makes them."""
    plan = SimpleNamespace(
        layout=LAYOUT,
        record=SimpleNamespace(topic="t"),
        versions={1: SCHEMA},
        bounds=bounds,
        offsets={p: (0, 1 << 40) for p in range(3)},
    )
    base = Held(rows) if bounds.has_base else None
    tables, read, _ = fold_in_driver(Log(records), plan, base, most_bytes)  # type: ignore[arg-type]
    assert read == len(records)
    held = dict(rows) if bounds.has_base else {}
    seen: set[str] = set()
    for row in (row for table in tables for row in table.to_pylist()):
        key = row.pop(KEY_COLUMN)
        assert key not in seen
        seen.add(key)
        if row.pop(GONE_COLUMN):
            del held[key]
        else:
            held[key] = row
    return held


def values(rows):
    return Counter(row["v"] for row in rows.values())


def asked(records, bounds, replica):
    """What ``select *`` gives."""
    tally = Tally("shop.public.t", "t", bounds.frontier, bounds.truncate, bounds.start)
    for offset, (key, value, headers) in enumerate(records):
        tally.add(offset % 3, [(offset, key, value, headers)])
    tail = count_tail(tally, bounds.start, bounds.truncate)
    with open_connection() as connection:
        overlay = TableOverlay(connection, 0, NAME, SCHEMA, replica)
        overlay.create(tail)
        lock(connection, overlay.files)
        names, _, rows = run(connection, "select * from shop.public.t")
    assert names == ("v",)
    return Counter(value for (value,) in rows)


def written(folder, rows, position):
    """A replica with these rows, in two files."""
    fields = [("v", pa.string()), (LSN_COLUMN, pa.int64()), (KEY_COLUMN, pa.string())]
    held = [{**row, KEY_COLUMN: key} for key, row in rows.items()]
    columns = {"v": "STRING", LSN_COLUMN: "BIGINT", KEY_COLUMN: "STRING"}
    return opened_replica(folder, held, fields, columns, position, 2)


@slow
@given(st.lists(texts, max_size=6), st.lists(actions, max_size=25), st.data())
def test_apply_and_query_have_each_row_as_often_as_the_source(loaded, changes, data):
    records, truncates, states = played(loaded, changes)
    middle, at_middle = data.draw(st.sampled_from(states))
    end, at_end = states[-1]
    replica = applied(records, bounds_of(truncates, None, middle), {})
    assert values(replica) == at_middle
    later = bounds_of(truncates, middle, end)
    assert values(applied(records, later, replica)) == at_end
    assert values(applied(records, bounds_of(truncates, None, end), {})) == at_end
    with tempfile.TemporaryDirectory() as folder:
        assert asked(records, later, written(folder, replica, middle)) == at_end
    assert asked(records, bounds_of(truncates, None, end), None) == at_end


def test_a_row_that_is_not_in_the_replica_cannot_go():
    records, truncates, states = played(["a", "a"], [("delete", 0)])
    middle, end = states[0][0], states[1][0]
    replica = applied(records, bounds_of(truncates, None, middle), {})
    later = bounds_of(truncates, middle, end)
    with tempfile.TemporaryDirectory() as folder:
        opened = written(folder, {}, middle)
        for ask in (lambda: applied(records, later, {}), lambda: asked(records, later, opened)):
            with pytest.raises(LogError) as refused:
                ask()
            assert (refused.value.code, refused.value.table) == ("row_missing", "shop.public.t")
    assert values(applied(records, later, replica)) == {"a": 1}


def test_a_range_too_large_for_the_driver_is_left_to_spark():
    records, truncates, states = played(["a"] * 100, [])
    with pytest.raises(TooLarge):
        applied(records, bounds_of(truncates, None, states[0][0]), {}, most_bytes=1000)
