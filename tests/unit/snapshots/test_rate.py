from hypothesis import given
from hypothesis import strategies as st

from snapshots.rate import RateLimit


@given(
    st.floats(0.5, 1e6),
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 2)), min_size=1, max_size=50),
)
def test_the_rate_holds_over_any_stretch_of_work(rate, batches):
    limit = RateLimit()
    limit.rows_per_second = rate
    now, rows = 100.0, 0
    for count, work in batches:
        now += work
        rows += count
        now += limit.pause(count, now)
    # Nobody is ahead of the rate by more than what the first slice allows.
    assert rows <= rate * (now - 100.0 + 0.26) + 1e-3


def test_no_pause_for_a_worker_that_is_slower():
    limit = RateLimit()
    limit.rows_per_second = 1000
    assert all(limit.pause(10, now / 10) == 0 for now in range(1, 100))


def test_no_limit():
    limit = RateLimit()
    assert limit.pause(10**9, 1.0) == 0
    assert limit.batch_rows(1000) == 1000


def test_batches_of_a_slow_worker_are_small():
    limit = RateLimit()
    limit.rows_per_second = 400
    assert limit.batch_rows(1000) == 100
    limit.rows_per_second = 0.5
    assert limit.batch_rows(1000) == 1
