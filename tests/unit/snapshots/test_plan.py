from hypothesis import given
from hypothesis import strategies as st

from cdc.load import ChunkPlan, Piece
from snapshots.plan import CHUNK_BYTES, MOST_LEAVES, Leaf, plan_chunks, plan_leaves

PG13, PG14 = 130_010, 140_000

blocks = st.integers(0, 5000)
toast = st.integers(0, 1 << 22)
chunk_bytes = st.integers(1, 1 << 22)


@given(blocks, toast, chunk_bytes, st.sampled_from([PG13, PG14, 170_000]))
def test_every_block_is_in_exactly_one_chunk_and_the_last_is_open_ended(
    blocks, toast, chunk_bytes, version
):
    (piece,) = plan_chunks(blocks, blocks * 8192 + toast, version, chunk_bytes).pieces
    assert_covers(piece, blocks)


def assert_covers(piece, blocks):
    assert piece.count >= 1 and piece.step >= 1
    next_block = 0
    for chunk in range(piece.count):
        first, end = piece.blocks(chunk)
        assert first == next_block
        assert (end is None) == (chunk == piece.count - 1)
        if end is not None:
            assert end > first
            next_block = end
    # No chunk begins behind the table's end.
    assert next_block < max(blocks, 1)


@given(blocks, toast, chunk_bytes)
def test_chunks_hold_about_what_was_asked_toast_included(blocks, toast, chunk_bytes):
    total = blocks * 8192 + toast
    (piece,) = plan_chunks(blocks, total, PG14, chunk_bytes).pieces
    if blocks and piece.count > 1:
        assert piece.step == 1 or piece.step * total / blocks <= chunk_bytes
        assert (piece.step + 1) * total / blocks > chunk_bytes


@given(blocks, toast, chunk_bytes)
def test_a_server_without_tid_range_scans_reads_the_table_at_once(blocks, toast, chunk_bytes):
    assert plan_chunks(blocks, blocks * 8192 + toast, PG13, chunk_bytes).count == 1


def test_examples():
    assert plan_chunks(0, 0, PG14) == ChunkPlan.whole(1, 1)
    assert plan_chunks(0, 8192, PG14) == ChunkPlan.whole(1, 1)
    assert plan_chunks(1, 8192, PG14) == ChunkPlan.whole(CHUNK_BYTES // 8192, 1)
    assert plan_chunks(10_000, 10_000 * 8192, PG14, 4000 * 8192) == ChunkPlan.whole(4000, 3)
    assert Piece(4000, 3).blocks(2) == (8000, None)


leaves = st.lists(
    st.builds(lambda blocks, toast: (blocks, blocks * 8192 + toast), blocks, toast), min_size=1
).map(lambda sizes: [Leaf(100 + n, *size) for n, size in enumerate(sizes)])


@given(leaves, chunk_bytes, st.sampled_from([PG13, PG14]))
def test_every_block_of_every_leaf_is_in_exactly_one_chunk(leaves, chunk_bytes, version):
    plan = plan_leaves(leaves, version, chunk_bytes)
    found = [plan.find(chunk) for chunk in range(plan.count)]
    assert found == [(piece, n) for piece in plan.pieces for n in range(piece.count)]
    relids = sorted(relid for piece in plan.pieces for relid in piece.leaves)
    assert relids == [leaf.relid for leaf in leaves]
    by_id = {leaf.relid: leaf for leaf in leaves}
    for piece in plan.pieces:
        members = [by_id[relid] for relid in piece.leaves]
        assert_covers(piece, sum(leaf.blocks for leaf in members))
        if len(members) > 1:
            # One query reads all of them to their ends.
            assert piece.count == 1
            assert sum(leaf.total_bytes for leaf in members) <= chunk_bytes
            assert len(members) <= MOST_LEAVES
        else:
            alone = plan_chunks(members[0].blocks, members[0].total_bytes, version, chunk_bytes)
            assert piece.blocks(piece.count - 1) == alone.pieces[0].blocks(alone.count - 1)


def test_examples_of_leaves():
    small, large = [Leaf(n, 2, 16384) for n in (1, 2, 3)], Leaf(9, 10, 81920)
    plan = plan_leaves([*small, large], PG14, 40960)
    assert plan == ChunkPlan((Piece(4, 1, (1, 2)), Piece(5, 2, (9,)), Piece(2, 1, (3,))))
    assert (plan.count, plan.size) == (4, 16)
    assert plan.find(2) == (plan.pieces[1], 1)
    assert plan.find(3) == (plan.pieces[2], 0)
    many = plan_leaves([Leaf(n, 0, 0) for n in range(MOST_LEAVES + 1)], PG14)
    assert [len(piece.leaves) for piece in many.pieces] == [MOST_LEAVES, 1]
