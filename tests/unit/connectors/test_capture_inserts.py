"""Runs of inserts: the same records as one by one, and whatever is unusual left to that way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolViolation, SourceStopped
from cdc.unsent import UNSENT
from connectors.postgres.inserts import LONGEST, SHORTEST, end_of_run, insert_columns
from connectors.postgres.messages import Delete, Insert, Relation
from connectors.postgres.pgoutput import decode
from tests.support.pgoutput_encoder import encode, keepalive, xlog_data
from tests.unit.connectors.test_capture_router import BIG, OTHER, RELATION, RELID, SCHEMA, Setup

HEAD = 31  # of the row in a message


def wire(rows, relid=RELID):
    return [xlog_data(encode(Insert(relid, tuple(row)))) for row in rows]


def rows_of(columns):
    return list(zip(*columns, strict=True))


values = (
    st.none()
    | st.binary(max_size=4).map(lambda v: v.replace(b"\0", b"t"))
    | st.sampled_from([b"", b"t", b"n", b"x" * 115, b"x" * 116, b"x" * 255, b"x" * 256, b"y" * 600])
)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[values] * n), min_size=1)))
def test_columns_are_those_of_the_decoder(rows):
    found = insert_columns(wire(rows), len(rows[0]))
    assert found is not None
    assert rows_of(found) == rows


@given(st.data())
def test_a_run_that_was_bent_is_read_as_the_decoder_does_or_not_at_all(data):
    rows = data.draw(st.lists(st.tuples(values, values), min_size=1, max_size=3))
    run = wire(rows)
    bent = bytearray(run[-1])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEAD + 2, len(bent) - 1))
        bent[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(bent), len(bent) - 1]))
    run[-1] = bytes(bent[:cut])
    columns = insert_columns(run, 2)
    if columns is not None:
        assert Insert(RELID, rows_of(columns)[-1]) == decode(run[-1], 25)


def test_another_width_is_left_to_the_decoder():
    assert insert_columns(wire([(b"1", b"2")]), 3) is None
    assert insert_columns(wire([(b"1", b"2")]), 1) is None


def test_an_unsent_value_is_left_to_the_decoder():
    assert insert_columns(wire([(b"1", UNSENT)]), 2) is None


def test_a_run_ends_at_other_messages_and_at_large_ones():
    run = wire([(b"1", b"x", b"1")] * 30)
    assert end_of_run([*run, keepalive(1), *run], 0, 1000) == 30
    assert end_of_run([*run, *wire([(b"1",)])], 2, 1000) == 30
    assert end_of_run([*run, *wire([(b"1", b"x", b"1")], relid=7)], 0, 1000) == 30
    assert end_of_run([*run, *wire([(b"1", b"x" * 1000, b"1")])], 0, 1000) == 30
    other = b"k" + run[0][1:]
    assert end_of_run([*run, other], 0, 1000) == 30
    assert end_of_run(run[: SHORTEST - 1], 0, 1000) == 0
    assert end_of_run([*run[:5], keepalive(1), *run], 0, 1000) == 0
    assert end_of_run(run * LONGEST, 0, 1000) == LONGEST


def at_once(rows):
    setup = Setup()
    setup.change(Insert(RELID, rows[0]))
    assert setup.router.inserts(RELID, wire(rows[1:]))
    return setup


def test_the_records_are_those_of_single_inserts():
    rows = [(b"%d" % i, b'a "quoted" name', None if i % 3 else b"7") for i in range(40)]
    single, together = Setup(), at_once(rows)
    for row in rows:
        single.change(Insert(RELID, row))
    assert [(t, p, k, h) for t, p, k, _, h in together.sent] == [
        (t, p, k, h) for t, p, k, _, h in single.sent
    ]

    # All but the time at which we handled it.
    def stable(value):
        return value[: value.rindex(b'"ts_ms"')]

    assert [stable(v) for *_, v, _ in together.sent] == [stable(v) for *_, v, _ in single.sent]
    for setup in (single, together):
        assert setup.router.ordinal == setup.router.records == 40
        assert setup.router.changes == {SCHEMA.id: 40}


def test_rows_of_a_relation_that_is_not_captured_only_count():
    setup = Setup()
    setup.router.relation(Relation(OTHER, "public", "elsewhere", "d", RELATION.columns), b"R")
    setup.change(Insert(OTHER, (b"1", b"x", b"1")))
    assert setup.router.inserts(OTHER, wire([(b"2", b"x", b"1")] * 2, relid=OTHER))
    assert setup.router.ordinal == 3
    assert setup.sent == []


def test_while_large_values_are_kept_inserts_are_taken_one_by_one():
    setup = Setup()
    setup.change(Insert(RELID, (b"1", BIG, b"1")))
    assert not setup.router.inserts(RELID, wire([(b"2", b"x", b"1")]))


@pytest.mark.parametrize("bad", [(b"1", b"\xff", b"1"), (None, b"x", b"1")])
def test_a_value_that_is_refused_is_told_of_with_its_position(bad):
    setup = Setup()
    setup.change(Insert(RELID, (b"1", b"x", b"1")))
    run = [(b"2", b"x", b"1"), bad]
    assert not setup.router.inserts(RELID, wire(run))
    setup.change(Insert(RELID, run[0]))
    with pytest.raises(SourceStopped) as stopped:
        setup.change(Insert(RELID, run[1]))
    assert str(stopped.value.position).endswith("-00000003")


def test_records_that_may_be_too_large_are_sent_one_by_one():
    setup = Setup()
    setup.change(Insert(RELID, (b"1", b"x", b"1")))
    setup.refuse_all = True
    assert not setup.router.inserts(RELID, wire([(b"2", b"x", b"1")]))
    assert setup.router.ordinal == 1


def test_a_row_of_another_width_is_left_to_the_router():
    setup = Setup()
    setup.change(Insert(RELID, (b"1", b"x", b"1")))
    assert not setup.router.inserts(RELID, wire([(b"2", b"x")]))
    with pytest.raises(ProtocolViolation):
        setup.change(Insert(RELID, (b"2", b"x")))


def test_a_delete_between_them_ends_the_run():
    run = wire([(b"1", b"x", b"1")] * 20)
    gone = xlog_data(encode(Delete(RELID, "K", (b"1", None, None))))
    assert end_of_run([*run, gone, *run], 0, 1000) == 20
