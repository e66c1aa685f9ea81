"""What a Relation message may say against the known schema."""

import dataclasses

import pytest

from cdc import codecs
from cdc.position import Position
from connectors.postgres.drift import AddedColumn, SchemaDrift, added_columns, next_schema
from connectors.postgres.messages import Relation, RelationColumn
from tests.support.schemas import table_schema

KNOWN = table_schema(("id", codecs.INT4), ("name", codecs.TEXT), ("total", codecs.NUMERIC))
SAME = Relation(
    16385,
    "public",
    "orders",
    "d",
    (
        RelationColumn("id", codecs.INT4, -1, True),
        RelationColumn("name", codecs.TEXT, -1, False),
        RelationColumn("total", codecs.NUMERIC, -1, False),
    ),
)
NEW = RelationColumn("note", codecs.TEXT, -1, False)
AT = Position(0, 100, 3)
NOTE = AddedColumn(4, "text", codecs.TEXT, -1, None, filled=False, rewritten=False)


def with_columns(*columns):
    return dataclasses.replace(SAME, columns=columns)


def test_the_same_relation_adds_nothing():
    assert added_columns(KNOWN, SAME) == ()


def test_columns_at_the_end_are_added():
    relation = with_columns(*SAME.columns, NEW)
    assert added_columns(KNOWN, relation) == (NEW,)
    schema = next_schema(KNOWN, (NEW,), {"note": NOTE}, AT)
    assert schema.version == 2
    assert schema.valid_from == AT
    assert schema.columns[:3] == KNOWN.columns
    assert (schema.columns[3].id, schema.columns[3].name, schema.columns[3].type) == (
        4,
        "note",
        "text",
    )
    assert added_columns(schema, relation) == ()


def test_a_number_that_is_taken_is_replaced_by_the_next():
    taken = dataclasses.replace(NOTE, number=2)
    assert next_schema(KNOWN, (NEW,), {"note": taken}, AT).columns[3].id == 4


A, B, C = SAME.columns


@pytest.mark.parametrize(
    ("relation", "code"),
    [
        (dataclasses.replace(SAME, name="orders2"), "table_renamed"),
        (dataclasses.replace(SAME, namespace="sales"), "table_renamed"),
        (dataclasses.replace(SAME, relid=9), "table_recreated"),
        (dataclasses.replace(SAME, identity="f"), "identity_changed"),
        (with_columns(A, B), "column_dropped"),
        (with_columns(A, C), "column_dropped"),
        (with_columns(A, dataclasses.replace(B, name="title"), C), "column_renamed"),
        (with_columns(A, C, B), "columns_changed"),
        (with_columns(A, dataclasses.replace(B, type_oid=codecs.VARCHAR), C), "column_retyped"),
        (with_columns(A, B, dataclasses.replace(C, typmod=655366)), "column_retyped"),
        (with_columns(A, dataclasses.replace(B, in_key=True), C), "key_changed"),
        (with_columns(dataclasses.replace(A, in_key=False), B, C), "key_changed"),
        (with_columns(A, B, C, dataclasses.replace(NEW, name="_CDC_x")), "reserved_column"),
        (with_columns(A, B, C, dataclasses.replace(NEW, name="NAME")), "ambiguous_column"),
    ],
)
def test_any_other_change_is_named(relation, code):
    with pytest.raises(SchemaDrift) as caught:
        added_columns(KNOWN, relation)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("catalog", "code"),
    [
        ({}, "column_unknown"),
        ({"note": dataclasses.replace(NOTE, type_oid=codecs.JSON)}, "column_unknown"),
        ({"note": dataclasses.replace(NOTE, again=True)}, "column_unknown"),
        ({"note": dataclasses.replace(NOTE, default="'x'::text")}, "column_default"),
        ({"note": dataclasses.replace(NOTE, filled=True)}, "column_default"),
        ({"note": dataclasses.replace(NOTE, rewritten=True)}, "table_rewritten"),
    ],
)
def test_a_column_that_old_rows_may_have_a_value_of_is_refused(catalog, code):
    with pytest.raises(SchemaDrift) as caught:
        next_schema(KNOWN, (NEW,), catalog, AT)
    assert caught.value.code == code


def test_under_full_identity_the_key_need_only_be_there():
    known = dataclasses.replace(KNOWN, identity="f")
    flagged = tuple(dataclasses.replace(c, in_key=True) for c in SAME.columns)
    relation = dataclasses.replace(SAME, identity="f", columns=flagged)
    assert added_columns(known, relation) == ()
