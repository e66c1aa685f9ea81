import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from cdc.control import ControlState, LoadRecord
from cdc.load import ChunkPlan, Measure, Piece
from cdc.names import TableId
from connectors.postgres.chunk_marks import Marks, left_of, mark, plan_of, planned

RECORD = LoadRecord(TableId("public", "orders"), 2, "topic", "id", "chunks", 100, "copying")
counts = st.integers(1, 5)
pieces = st.lists(
    st.builds(Piece, counts, counts, st.lists(st.integers(1, 99), min_size=1).map(tuple)),
    min_size=1,
).map(tuple)
plans = st.builds(ChunkPlan.whole, counts, counts) | st.builds(ChunkPlan, pieces)


@given(plans)
def test_a_plan_is_the_same_after_it_was_in_control(plan):
    record = planned(RECORD, Measure(plan, 70, 8192))
    state = ControlState()
    state.apply(*record.to_key_value())
    (found,) = state.unfinished_loads()
    assert found == record
    assert plan_of(found) == plan
    assert (found.chunks, found.estimate) == (plan.count, 70)


def test_a_record_from_before_there_were_pieces():
    key, value = planned(RECORD, Measure(ChunkPlan.whole(40, 3), 70, 8192)).to_key_value()
    state = ControlState()
    state.apply(key, value.replace(b'"pieces":[],', b""))
    (found,) = state.unfinished_loads()
    assert plan_of(found) == ChunkPlan.whole(40, 3)


@given(st.permutations(range(6)))
def test_marks_of_chunks_in_any_order(chunks):
    done: Marks = ()
    left = set(range(6))
    for chunk in chunks:
        done = mark(done, chunk)
        left.discard(chunk)
        record = planned(RECORD, Measure(ChunkPlan.whole(1, 6), None, 0))
        assert left_of(dataclasses.replace(record, done=done)) == tuple(sorted(left))
    assert done == ((0, 5),)
