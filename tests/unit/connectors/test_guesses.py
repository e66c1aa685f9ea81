"""Values that a replay behind chunks re-reads: which of them the row before has exactly."""

from cdc.unsent import UNSENT
from connectors.postgres.toast import Guesses

FOUND, GONE = (b"key", b"as it is now"), (b"key", UNSENT)


def guesses(exact_from):
    made = Guesses()
    made.copied_at = made.exact_from = exact_from
    return made


def test_of_the_stream_the_row_before_is_exact():
    made = guesses(0)
    assert made.inherited(50, FOUND, (1,), moved=True) == (1,)
    assert made.inherited(51, FOUND, (1,), moved=False) == (1,)
    assert not made.any


def test_a_row_that_moved_does_not_take_what_another_row_has_left():
    made = guesses(100)
    # From key 0 to 1 before the chunk was read; by now another row has key 1, whose value it gets.
    assert made.inherited(50, FOUND, (1,), moved=True) == ()
    # From key 1 to 5 behind the chunk, in the same step: the log has the other's under key 1.
    assert made.inherited(150, FOUND, (1,), moved=True) == ()
    assert made.inherited(160, GONE, (1,), moved=True) == (1,)
    assert made.any
    # All of that is in the stream by the LSN that is told then.
    made.exact_from, made.any = 200, False
    assert made.inherited(199, FOUND, (1,), moved=True) == ()
    made.exact_from, made.any = 300, False
    assert made.inherited(300, FOUND, (1,), moved=True) == (1,)
    assert not made.any


def test_a_chunk_may_have_later_rows():
    made = guesses(100)
    assert made.inherited(50, FOUND, (1,), moved=False) == (1,)
    assert made.any
    made.exact_from, made.any = 200, False
    assert made.inherited(150, FOUND, (1,), moved=False) == (1,)
    assert not made.any
