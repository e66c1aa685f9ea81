"""Tables without a key: rows are counted right, in any order and however often delivered."""

from collections import Counter

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.counted import DIGEST_LENGTH, row_digest
from cdc.envelope import TransactionFields
from cdc.errors import LogError
from cdc.tally import Tally
from tests.support.counted_histories import ENCODER, EVERYTHING, actions, played, row, texts


def folded(records, truncates, frontier, start=None, held=None):
    """Copy keys of a replica at ``start`` and then, with their rows."""
    truncate = max((t for t in truncates if t < frontier), default=None)
    tally = Tally("shop.public.t", "t", frontier, truncate, start)
    for offset, (partition, (key, value, headers)) in enumerate(records):
        tally.add(partition, [(offset, key, value, headers)])
    keeps = start is not None and (truncate is None or truncate < start)
    copies = dict(held) if held and keeps else {}
    counts = Counter(key[:DIGEST_LENGTH] for key in copies)
    for _, (_, key, value, _) in tally.copies(counts):
        if value is None:
            del copies[key.decode()]
        else:
            assert key.decode() not in copies
            copies[key.decode()] = orjson.loads(value)["after"]["v"]
    return copies


@given(
    st.lists(texts, max_size=6),
    st.lists(actions, max_size=25),
    st.data(),
)
def test_rows_are_counted_whatever_the_order_and_however_often_delivered(loaded, changes, data):
    records, truncates, states = played(loaded, changes)
    placed = [(data.draw(st.integers(0, 2)), record) for record in records]
    again = data.draw(st.lists(st.sampled_from(placed), max_size=10)) if placed else []
    delivered = data.draw(st.permutations(placed + again))
    # A replica at one position, brought to another, which is then the end; and a rebuild.
    middle, at_middle = data.draw(st.sampled_from(states))
    end, at_end = states[-1]
    replica = folded(delivered, truncates, middle)
    assert Counter(replica.values()) == at_middle
    applied = folded(delivered, truncates, end, middle, replica)
    assert Counter(applied.values()) == at_end
    assert applied == folded(delivered, truncates, end)


def test_a_row_that_goes_and_was_not_there_is_an_error():
    txn = TransactionFields(0, 16, 1, 0, 0, snapshot=False)
    ((key, value, headers),) = ENCODER.delete("O", row("a"), txn, 1)
    tally = Tally("shop.public.t", "t", EVERYTHING)
    tally.add(0, [(0, key, value, headers)])
    digest = row_digest(b'{"v":"a"}').decode()
    assert tally.changes == {digest: -1}
    assert [record[2] for _, record in tally.copies({digest: 1})] == [None]
    with pytest.raises(LogError) as caught:
        list(tally.copies({}))
    assert (caught.value.code, caught.value.table) == ("row_missing", "shop.public.t")


def test_records_of_another_kind_are_refused():
    txn = TransactionFields(0, 16, 1, 0, 0, snapshot=False)
    key, value, headers = ENCODER.insert(row("a"), txn, 1)
    for bad in (
        (0, key, value, headers[:2]),
        (0, key, value, [*headers[:2], ("cdc.plus", b"x")]),
        (0, key, None, headers),
        (0, key, value, headers[1:]),
    ):
        with pytest.raises(LogError, match="not one of a table without a key"):
            Tally("shop.public.t", "t", EVERYTHING).add(0, [bad])
