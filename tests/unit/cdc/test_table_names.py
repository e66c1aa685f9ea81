"""Names and patterns of tables, as cdc.yaml spells them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.names import TableId
from cdc.table_names import TablePattern, parse_table_name


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("public.*", ["public.a", "public.A b.c", "public.*"], ["publics.a", "Public.a"]),
        ("*.*", ["a.b", "public.x"], []),
        ("sales.order_?", ["sales.order_1", "sales.order_é"], ["sales.order_", "sales.order_10"]),
        ("*_eu.t", ["shop_eu.t", "_eu.t"], ["shop_eu.tt", "eu.t"]),
        ('a."x*"*', ["a.x*", "a.x*y"], ["a.xy"]),
        ('a."x.y"?', ["a.x.yz"], ["a.x.y", "a.xzyz"]),
        ('"a?".*', ["a?.t"], ["ab.t"]),
        ("a.[b]", ["a.[b]"], ["a.b"]),
        ("a.*b*c*", ["a.xbxcx", "a.bc"], ["a.cb"]),
        ("a.\n*", ["a.\nx\ny"], ["a.x"]),
    ],
)
def test_what_a_pattern_matches(pattern, yes, no):
    found = TablePattern.parse(pattern)
    for name, wanted in [*((name, True) for name in yes), *((name, False) for name in no)]:
        schema, _, table = name.partition(".")
        assert found.matches(TableId(schema, table)) is wanted, name


def test_exceptions_do_not_match_and_travel():
    pattern = TablePattern.parse("public.*", ["public.tmp_*", 'public."a*"'])
    assert TablePattern.from_json(pattern.to_json()) == pattern
    matched = [t for t in ("a", "a*", "ab", "tmp_1") if pattern.matches(TableId("public", t))]
    assert matched == ["a", "ab"]


NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12
)


@given(NAMES, NAMES, NAMES)
def test_a_quoted_name_is_taken_as_it_is(schema, table, other):
    def quoted(part):
        return '"' + part.replace('"', '""') + '"'

    id = TableId(schema, table)
    text = f"{quoted(schema)}.{quoted(table)}"
    assert parse_table_name(text) == id
    pattern = TablePattern.parse(text)
    assert pattern.matches(id)
    assert pattern.matches(TableId(schema, other)) is (other == table)
    # And as the literal part of a pattern.
    longer = TablePattern.parse(f"*.{quoted(table)}*")
    assert longer.matches(TableId(other, table + other))
    assert longer.matches(TableId(schema, other)) is other.startswith(table)


SIGNS = st.text("ab*?", max_size=8)


@given(SIGNS.filter(bool), st.text("ab", max_size=8))
def test_wildcards_stand_for_what_they_say(pattern, name):
    def matches(pattern, name):
        if not pattern:
            return not name
        if pattern[0] == "*":
            return matches(pattern[1:], name) or (bool(name) and matches(pattern, name[1:]))
        return bool(name) and pattern[0] in ("?", name[0]) and matches(pattern[1:], name[1:])

    found = TablePattern.parse(f"s.{pattern}")
    assert found.matches(TableId("s", name)) is matches(pattern, name)
    assert (found.id is None) is ("*" in pattern or "?" in pattern)


def test_one_table_is_no_pattern():
    with pytest.raises(ValueError, match="pattern"):
        parse_table_name("public.*")


def test_many_stars_do_not_take_for_ever():
    assert not TablePattern.parse("s." + "*a" * 30 + "*b").matches(TableId("s", "a" * 63))


PARTS = st.text(st.sampled_from('a.B"*?%[]{}! é'), min_size=1, max_size=6)


@given(PARTS, PARTS)
@example("a", "b.c")
@example("a.b", "c")
def test_a_table_as_text_is_that_table(schema, table):
    """So that no two look alike: apply keeps a lock for each, status and metrics a line."""
    id = TableId(schema, table)
    assert parse_table_name(str(id)) == id


def test_usual_names_are_not_quoted():
    assert str(TableId("public", "Orders of 2013")) == "public.Orders of 2013"
    assert str(TableId("a.b", 'c"d')) == '"a.b"."c""d"'
