from hypothesis import given
from hypothesis import strategies as st

from cdc.load import ChunkPlan
from snapshots.plan import CHUNK_BYTES, plan_chunks

PG13, PG14 = 130_010, 140_000

blocks = st.integers(0, 5000)
toast = st.integers(0, 1 << 22)
chunk_bytes = st.integers(1, 1 << 22)


@given(blocks, toast, chunk_bytes, st.sampled_from([PG13, PG14, 170_000]))
def test_every_block_is_in_exactly_one_chunk_and_the_last_is_open_ended(
    blocks, toast, chunk_bytes, version
):
    plan = plan_chunks(blocks, blocks * 8192 + toast, version, chunk_bytes)
    assert plan.count >= 1 and plan.step >= 1
    next_block = 0
    for chunk in range(plan.count):
        first, end = plan.blocks(chunk)
        assert first == next_block
        assert (end is None) == (chunk == plan.count - 1)
        if end is not None:
            assert end > first
            next_block = end
    # No chunk begins behind the table's end.
    assert next_block < max(blocks, 1)


@given(blocks, toast, chunk_bytes)
def test_chunks_hold_about_what_was_asked_toast_included(blocks, toast, chunk_bytes):
    total = blocks * 8192 + toast
    plan = plan_chunks(blocks, total, PG14, chunk_bytes)
    if blocks and plan.count > 1:
        assert plan.step == 1 or plan.step * total / blocks <= chunk_bytes
        assert (plan.step + 1) * total / blocks > chunk_bytes


@given(blocks, toast, chunk_bytes)
def test_a_server_without_tid_range_scans_reads_the_table_at_once(blocks, toast, chunk_bytes):
    assert plan_chunks(blocks, blocks * 8192 + toast, PG13, chunk_bytes).count == 1


def test_examples():
    assert plan_chunks(0, 0, PG14) == ChunkPlan(1, 1)
    assert plan_chunks(0, 8192, PG14) == ChunkPlan(1, 1)
    assert plan_chunks(1, 8192, PG14) == ChunkPlan(CHUNK_BYTES // 8192, 1)
    assert plan_chunks(10_000, 10_000 * 8192, PG14, 4000 * 8192) == ChunkPlan(4000, 3)
    assert ChunkPlan(4000, 3).blocks(2) == (8000, None)
