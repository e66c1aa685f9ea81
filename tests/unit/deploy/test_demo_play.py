"""The demo's flights: what is played ends as the data set has it."""

import itertools

import pytest

from deploy.demo.data import FLIGHTS, SMALL_TABLES, read
from deploy.demo.play import ARRIVE, CANCEL, DEPART, INSERT, changes

AT = {name: index for index, name in enumerate(FLIGHTS.columns)}


def key_of(row):
    return tuple(row[AT[name]] for name in FLIGHTS.key)


def play(flights):
    """A made-up server that knows just the demo's four statements."""
    rows = {}
    for change in changes(flights):
        if change.sql == INSERT:
            assert key_of(change.values) not in rows
            rows[key_of(change.values)] = list(change.values)
        elif change.sql == CANCEL:
            del rows[change.values]
        else:
            departing = change.sql == DEPART
            names = (
                ["dep_time", "dep_delay"] if departing else ["arr_time", "arr_delay", "air_time"]
            )
            row = rows[change.values[len(names) :]]
            for name, value in zip(names, change.values, strict=False):
                row[AT[name]] = value
    return {key: tuple(row) for key, row in rows.items()}


def test_all_that_is_played_ends_as_in_the_data_set():
    flights = list(itertools.islice(read(FLIGHTS), 20_000))
    flown = [flight for flight in flights if flight[AT["dep_time"]] is not None]
    assert 0 < len(flown) < len(flights)
    assert play(flights) == {key_of(flight): flight for flight in flown}


def test_changes_are_in_order_of_time_and_complete():
    flights = list(itertools.islice(read(FLIGHTS), 2_000))
    found = changes(flights)
    assert [c.at for c in found] == sorted(c.at for c in found)
    counts = {sql: sum(c.sql == sql for c in found) for sql in (INSERT, DEPART, ARRIVE, CANCEL)}
    assert counts[INSERT] == len(flights)
    assert counts[DEPART] == counts[ARRIVE] == len(flights) - counts[CANCEL]


@pytest.mark.parametrize("table", SMALL_TABLES, ids=lambda table: table.name)
def test_keys_are_unique_and_never_null(table):
    columns = list(table.columns)
    keys = [tuple(row[columns.index(name)] for name in table.key) for row in read(table)]
    assert len(set(keys)) == len(keys)
    assert all(value is not None for key in keys for value in key)
