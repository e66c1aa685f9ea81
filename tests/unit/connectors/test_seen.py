"""A snapshot sees what had ended, whatever the epoch of transaction ids."""

import pytest

from cdc.errors import LogError
from connectors.postgres.seen import Snapshot


def seen(snapshot, *full_ids, lsn=99):
    return [id for id in full_ids if snapshot.sees(id % 2**32, lsn)]


def test_what_had_ended_is_seen():
    snapshot = Snapshot.parse("100:105:100,103", 1000)
    assert seen(snapshot, 3, 99, 100, 101, 102, 103, 104, 105, 106) == [3, 99, 101, 102, 104]


def test_ids_are_compared_with_their_epoch():
    border = 5 * 2**32
    snapshot = Snapshot.parse(f"{border - 2}:{border + 2}:{border - 2},{border}", 1000)
    around = [border + n for n in (-(2**31) + 4, -3, -2, -1, 0, 1, 2, 3, 2**31 - 4)]
    assert seen(snapshot, *around) == [around[0], border - 3, border - 1, border + 1]


def test_what_was_committed_after_the_copy_is_not_seen():
    snapshot = Snapshot.parse("100:100:", 1000)
    assert snapshot.sees(99, 999)
    assert not snapshot.sees(99, 1000)


@pytest.mark.parametrize("text", [None, "", "1:2", "1:2:x", "a:b:"])
def test_a_load_without_its_snapshot_is_an_error(text):
    with pytest.raises(LogError, match="has no snapshot"):
        Snapshot.parse(text, 1)
