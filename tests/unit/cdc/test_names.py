import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.names import (
    RESERVED_COLUMNS,
    derived_columns,
    lake_folder,
    quote_ident,
    quote_literal,
    source_column,
    topic_name,
)

any_text = st.text(min_size=1, max_size=63).filter(lambda s: "\0" not in s)
#: With those that Delta gives a meaning, and what they become.
names = any_text | st.sampled_from(("_delta_log", "-5fdelta_log", "_samples", "_Samples"))


def topic(schema, table, load=1, **kwargs):
    return topic_name("", "shop", schema, table, load, **kwargs)


@given(names, names, names, names)
def test_two_tables_never_share_a_topic_or_folder(s1, t1, s2, t2):
    if (s1, t1) != (s2, t2):
        assert topic(s1, t1) != topic(s2, t2)
        one, two = lake_folder("lake", "shop", s1, t1), lake_folder("lake", "shop", s2, t2)
        assert one.lower() != two.lower()


@given(names, names, st.integers(1, 99))
def test_topics_are_legal_in_kafka(schema, table, load):
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic(schema, table, load))


@given(names, names)
def test_a_folder_stays_under_its_root(schema, table):
    assert re.fullmatch(
        r"/lake/shop/[a-z0-9_-]+/[a-z0-9_-]+", lake_folder("/lake/", "shop", schema, table)
    )


#: What engines take for the same by case, and what looks like an escaped name.
awkward = st.lists(st.sampled_from("aAksSßẞİi\u0131K\u212a\u017f"))
reserved = st.sampled_from(sorted(RESERVED_COLUMNS))
cased = names | awkward.map("".join).filter(bool) | reserved | reserved.map(str.upper)
escaped = cased.map(lambda n: f"{n}~{n.encode().hex()}")
columns = st.lists(cased | escaped | escaped.map(str.upper), unique=True, max_size=12)


def in_java(name):
    """Equal for names that are equal by ``equalsIgnoreCase``."""
    upper = (c.upper() if len(c.upper()) == 1 else c for c in name)
    return "".join(c.lower()[0] for c in upper)


@given(columns)
def test_derived_columns_are_distinct_and_reversible(columns):
    derived = derived_columns(columns)
    assert list(derived) == columns
    for fold in (str.lower, in_java, lambda name: name.encode().lower()):
        assert len({fold(name) for name in derived.values()}) == len(columns)
    assert [source_column(name) for name in derived.values()] == columns


@given(columns, names)
def test_a_column_that_comes_later_renames_none(columns, later):
    if later not in columns:
        before, after = derived_columns(columns), derived_columns([*columns, later])
        assert {name: after[name] for name in columns} == before


@given(columns)
def test_no_derived_column_has_a_reserved_name(columns):
    assert RESERVED_COLUMNS.isdisjoint(derived_columns(columns).values())


@pytest.mark.parametrize(
    "name", ["a", "Order", "temp~20", "a b", "é", "x~", "~41", "_row_id", "filepath", "FILEPATH"]
)
def test_ordinary_columns_keep_their_names(name):
    assert derived_columns([name, "other"])[name] == name


def test_columns_that_differ_by_case():
    assert derived_columns(["id", "Id", "ID"]) == {"id": "id", "Id": "Id~4964", "ID": "ID~4944"}


def test_columns_that_spark_needs_the_names_of():
    assert derived_columns(["_row_id_", "_Row_Id_", "filePath", "filepath"]) == {
        "_row_id_": "_row_id_~5f726f775f69645f",
        "_Row_Id_": "_Row_Id_~5f526f775f49645f",
        "filePath": "filePath~66696c6550617468",
        "filepath": "filepath",
    }


def test_forms():
    assert topic("public", "orders") == "shop.public.orders"
    assert topic("public", "orders", 3) == "shop.public.orders--3"
    assert topic("public", "a.b-c é") == "shop.public.a-2eb-2dc-20-c3-a9"
    assert lake_folder("l", "shop", "public", "Orders") == "l/shop/public/-4frders"
    assert lake_folder("l", "shop", "_samples", "_delta_log") == "l/shop/-5fsamples/-5fdelta_log"
    assert lake_folder("l", "shop", "_sample", "_delta_logs") == "l/shop/_sample/_delta_logs"
    long = topic("s" * 63, "é" * 31)
    assert len(long) == 120 + 3 + 16 and re.fullmatch(r".*--x[0-9a-f]{16}", long)
    assert topic("public", "t", hashed=True).startswith("shop.public.t--x")
    assert topic("public", "t", hashed=True) != topic("public", "t", 2, hashed=True)


def test_quoting():
    assert quote_ident('a"b') == '"a""b"'
    assert quote_literal("a'b") == "'a''b'"
    with pytest.raises(ValueError, match="zero byte"):
        quote_ident("a\0")
    with pytest.raises(ValueError, match="zero byte"):
        quote_literal("a\0")
