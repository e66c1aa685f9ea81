"""Every kind of change of form under every policy."""

from typing import get_args

import pytest

from cdc.names import TableId
from cdc.schema_policy import (
    KINDS,
    Action,
    Kind,
    SchemaPolicies,
    SchemaPolicy,
    action_on,
)
from cdc.table_names import TablePattern

FOLLOW, HIDE, KEEP, DROP, RELOAD, STOP = Action
POLICIES = get_args(SchemaPolicy)
#: As in docs/configuration.md.
EXPECTED = {
    #                evolve  try_evolve lenient ignore  exception
    Kind.ADDED: (FOLLOW, FOLLOW, FOLLOW, HIDE, STOP),
    Kind.FILLED: (STOP, RELOAD, RELOAD, HIDE, STOP),
    Kind.DROPPED: (DROP, DROP, KEEP, KEEP, STOP),
    Kind.RENAMED: (STOP, RELOAD, RELOAD, HIDE, STOP),
    Kind.OTHER: (STOP, RELOAD, RELOAD, RELOAD, STOP),
}


@pytest.mark.parametrize("code", KINDS)
def test_every_kind_under_every_policy(code):
    assert tuple(action_on(code, policy) for policy in POLICIES) == EXPECTED[KINDS[code]]


def test_the_table_is_whole():
    assert POLICIES == ("evolve", "try_evolve", "lenient", "ignore", "exception")
    assert set(EXPECTED) == set(Kind) == set(KINDS.values())


@pytest.mark.parametrize("code", ["publication_changed", "partitions_changed", "unlogged"])
def test_a_gap_is_no_change_of_form(code):
    assert {action_on(code, policy) for policy in POLICIES} == {RELOAD}


def test_the_first_entry_that_matches_counts():
    policies = SchemaPolicies(
        "try_evolve",
        (
            (TablePattern.parse("public.orders"), "exception"),
            (TablePattern.parse("public.*", ["public.tmp"]), "ignore"),
        ),
    )
    for kept in (policies, SchemaPolicies.from_json(policies.to_json())):
        assert kept.of(TableId("public", "orders")) == "exception"
        assert kept.of(TableId("public", "others")) == "ignore"
        assert kept.of(TableId("public", "tmp")) == "try_evolve"
    assert SchemaPolicies().of(TableId("a", "b")) == "lenient"
