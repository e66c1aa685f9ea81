"""How events of the log are held against those expected of one key."""

import pytest

from cdc.names import TableId
from tests.cases.case import Event
from tests.cases.events import Logged, Part, compare

T = TableId("public", "t")


def wanted(ops, unsent=()):
    return [Event(op, T, "[]", frozenset(unsent)) for op in ops]


def logged(ops, unsent=()):
    return [Logged(op, "[]", frozenset(unsent)) for op in ops]


@pytest.mark.parametrize(
    ("part", "expected", "found", "fits"),
    [
        (Part.ALL, "rcud", "rcud", True),
        (Part.ALL, "rcud", "rcu", False),
        (Part.ALL, "rcud", "cud", False),
        (Part.ALL, "rdc", "rcd", False),
        (Part.ALL, "", "r", False),
        (Part.END, "rcud", "rud", True),
        (Part.END, "rcud", "ud", True),
        (Part.END, "rcud", "r", True),
        (Part.END, "rcud", "rcu", False),
        (Part.BEGINNING, "rcud", "rcu", True),
        (Part.BEGINNING, "rcud", "", True),
        (Part.BEGINNING, "rcud", "rud", False),
    ],
)
def test_a_log_has_to_have_its_part_of_the_events(part, expected, found, fits):
    assert (compare(wanted(expected), logged(found), part, keyed=True) == "") == fits


def test_without_a_key_an_update_is_two_rows():
    assert compare(wanted("rud"), logged("rdcd"), Part.ALL, keyed=False) == ""
    assert compare(wanted("rud"), logged("rdcd"), Part.ALL, keyed=True) != ""


def test_a_column_that_was_sent_must_not_be_called_unsent():
    assert compare(wanted("u", ["a", "b"]), logged("u", ["b"]), Part.ALL, keyed=True) == ""
    said = compare(wanted("u", ["b"]), logged("u", ["a", "b"]), Part.ALL, keyed=True)
    assert said == "the log says that an update came without a"
