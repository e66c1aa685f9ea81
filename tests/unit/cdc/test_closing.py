import pytest

from cdc.closing import Closing


class Thing(Closing):
    closed = 0

    def close(self):
        self.closed += 1


def test_the_block_closes_whatever_happens_in_it():
    with Thing() as thing:
        assert thing.closed == 0
    assert thing.closed == 1
    with pytest.raises(ValueError, match="passes"), thing as again:
        assert again is thing
        raise ValueError("passes")
    assert thing.closed == 2


def test_something_without_close_cannot_be_made():
    with pytest.raises(TypeError):
        type("Nothing", (Closing,), {})()
