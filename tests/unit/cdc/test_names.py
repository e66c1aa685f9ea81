import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.names import lake_folder, quote_ident, quote_literal, topic_name

names = st.text(min_size=1, max_size=63).filter(lambda s: "\0" not in s)


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


def test_forms():
    assert topic("public", "orders") == "shop.public.orders"
    assert topic("public", "orders", 3) == "shop.public.orders--3"
    assert topic("public", "a.b-c é") == "shop.public.a-2eb-2dc-20-c3-a9"
    assert lake_folder("l", "shop", "public", "Orders") == "l/shop/public/-4frders"
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
