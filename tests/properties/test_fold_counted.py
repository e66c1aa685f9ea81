"""Spark counts the rows of a table without a key as the tally in the driver does."""

import random
from collections import Counter

import orjson
import pyarrow as pa
import pytest

from cdc.counted import DIGEST_LENGTH, copy_key, row_digest
from cdc.errors import LogError
from cdc.position import Position
from cdc.tally import Tally
from spark_jobs.base import BaseRows
from spark_jobs.failures import spark_failures
from spark_jobs.fold_counted import copy_records
from spark_jobs.layout import Layout
from spark_jobs.records import Bounds
from spark_jobs.session import worker_session
from tests.support.counted_histories import EVERYTHING, SCHEMA, VALUES, played
from tests.support.raw_records import RAW

pytestmark = pytest.mark.spark

LAYOUT = Layout(SCHEMA, "shop.public.t")


class Held(BaseRows):
    """Copies that are not in a Delta table."""

    def __init__(self, session, keys):
        self._session, self._keys, self._layout = session, sorted(keys), LAYOUT

    def frame(self):
        keys = pa.table({"_cdc_key": pa.array(self._keys, pa.string())})
        return self._session.createDataFrame(keys)


def raw_row(partition, offset, record):
    key, value, headers = record
    named = [{"key": name, "value": text} for name, text in headers]
    return {
        "key": key,
        "value": value,
        "partition": partition,
        "offset": offset,
        "headers": named,
    }


def by_sql(session, delivered, bounds, base):
    table = pa.Table.from_pylist([raw_row(*item) for item in delivered], RAW)
    with spark_failures(LAYOUT, "counting"):
        rows = copy_records(session.createDataFrame(table), bounds, base).toArrow().to_pylist()
    found = {row["key"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def by_tally(delivered, bounds, counts):
    tally = Tally(LAYOUT.table, "t", bounds.frontier, bounds.truncate, bounds.start)
    for partition, offset, (key, value, headers) in delivered:
        tally.add(partition, [(offset, key, value, headers)])
    return {copy[1]: copy for _, copy in tally.copies(counts)}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_both_count_alike(spark, seed):
    session = worker_session(spark)
    rng = random.Random(seed)
    changes: list[tuple[object, ...]] = [
        rng.choice(
            [
                ("insert", rng.choice(VALUES)),
                ("delete", rng.randrange(50)),
                ("update", rng.randrange(50), rng.choice(VALUES)),
                ("update", rng.randrange(50), rng.choice(VALUES)),
            ]
        )
        for _ in range(300)
    ]
    if seed == 2:
        changes[200] = ("truncate",)
    records, truncates, states = played([rng.choice(VALUES) for _ in range(60)], changes)
    delivered = [(n % 3, n, record) for n, record in enumerate(records)]
    delivered += [(p, 1000 + n, record) for p, n, record in delivered if n % 5 == 0]
    rng.shuffle(delivered)
    truncate = truncates[-1] if truncates else None
    for (start, held), (end, wanted) in (
        ((None, Counter()), states[-1]),
        (states[100], states[-1]),
        (states[250], states[-1]),
    ):
        bounds = Bounds(start, end, truncate)
        held = held if bounds.has_base else Counter()
        counts = {digest_of(text): count for text, count in held.items()}
        keys = {copy_key(d, n) for d, count in counts.items() for n in range(1, count + 1)}
        base = Held(session, keys) if bounds.has_base else None
        found = by_sql(session, delivered, bounds, base)
        expected = by_tally(delivered, bounds, counts)
        # Which of the records that brought a row is told of does not matter.
        assert {key: image(row["value"]) for key, row in found.items()} == {
            key: image(copy[2]) for key, copy in expected.items()
        }
        assert base is None or base.copies(counts) == counts
        applied = keys - {key.decode() for key, row in found.items() if row["value"] is None}
        applied |= {key.decode() for key, row in found.items() if row["value"] is not None}
        assert Counter(key[:DIGEST_LENGTH] for key in applied) == {
            digest_of(text): count for text, count in wanted.items()
        }


def image(value):
    return None if value is None else orjson.loads(value)["after"]


def digest_of(text):
    image = b'{"v":null}' if text is None else b'{"v":"%b"}' % text.encode()
    return row_digest(image).decode()


def test_what_is_not_there_cannot_go_and_what_is_not_ours_is_named(spark):
    session = worker_session(spark)
    records, _, _ = played(["a"], [("delete", 0)])
    (key, value, headers) = records[1]
    bounds = Bounds(Position(0, 8, 0), EVERYTHING)
    for record, code in (
        (records[1], "row_missing"),
        ((key, value, headers[:2]), "bad_record"),
        ((key, None, headers), "bad_record"),
        ((key, value, [*headers[:2], ("cdc.minus", b"A" * 64)]), "bad_record"),
    ):
        with pytest.raises(LogError) as refused:
            by_sql(session, [(0, 5, record)], bounds, Held(session, []))
        assert (refused.value.code, refused.value.table) == (code, "shop.public.t")
