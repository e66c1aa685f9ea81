import itertools
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from snapshots.plan import BlockRange, TableSize, plan_ranges

PG13, PG14 = 130_010, 140_000

sizes = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 1 << 20)), min_size=1, max_size=8
).map(
    lambda raw: [
        TableSize(i, blocks, blocks * 8192 + toast) for i, (blocks, toast) in enumerate(raw)
    ]
)


def by_table(ranges):
    tables = defaultdict(list)
    for blocks in ranges:
        tables[blocks.table].append(blocks)
    return tables


@given(sizes, st.integers(1, 1 << 22), st.sampled_from([PG13, PG14, 170_000]))
def test_every_block_of_every_table_is_in_exactly_one_range(sizes, range_bytes, version):
    tables = by_table(plan_ranges(sizes, version, range_bytes))
    assert set(tables) == {s.table for s in sizes}
    for parts in tables.values():
        assert parts[0].first == 0
        assert parts[-1].end is None
        for before, after in itertools.pairwise(parts):
            assert before.end == after.first > before.first


@given(sizes, st.integers(1, 1 << 22))
def test_ranges_hold_about_what_was_asked_toast_included(sizes, range_bytes):
    tables = by_table(plan_ranges(sizes, PG14, range_bytes))
    for size in sizes:
        for blocks in tables[size.table][:-1]:
            held = (blocks.end - blocks.first) * size.total_bytes / size.blocks
            assert held <= range_bytes or blocks.end - blocks.first == 1
        last = tables[size.table][-1]
        if size.blocks:
            assert last.first < size.blocks


@given(sizes)
def test_larger_tables_come_first(sizes):
    ranges = plan_ranges(sizes, PG14, 1 << 20)
    order = list(by_table(ranges))
    totals = {s.table: s.total_bytes for s in sizes}
    assert [totals[t] for t in order] == sorted(totals.values(), reverse=True)
    assert [r.table for r in ranges] == [r.table for t in order for r in by_table(ranges)[t]]


def test_a_server_without_tid_range_scans_reads_whole_tables():
    assert plan_ranges([TableSize(0, 10_000, 1 << 27)], PG13) == [BlockRange(0, 0, None)]
    assert BlockRange(0, 0, None).whole


def test_large_table_in_ranges():
    ranges = plan_ranges([TableSize(0, 10_000, 10_000 * 8192)], PG14, 8192 * 4000)
    assert ranges == [BlockRange(0, 0, 4000), BlockRange(0, 4000, 8000), BlockRange(0, 8000, None)]
    assert not any(r.whole for r in ranges)
