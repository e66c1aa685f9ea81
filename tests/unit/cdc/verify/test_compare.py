"""Which ranges are looked into."""

from cdc.verify.compare import differing_ranges
from cdc.verify.sides import Sum


def test_ranges_differ_by_rows_or_sum_or_by_being_on_one_side_only():
    source = {1: Sum(2, 10), 2: Sum(1, 5), 3: Sum(1, 7), 5: Sum(1, 1)}
    derived = {1: Sum(2, 10), 2: Sum(1, 6), 3: Sum(2, 7), 4: Sum(1, 1)}
    assert differing_ranges(source, derived) == [2, 3, 4, 5]
    assert differing_ranges(source, dict(source)) == []
