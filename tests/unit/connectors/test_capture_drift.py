"""What a Relation message may say against the known schema, and what each policy makes of it."""

import dataclasses

import pytest

from cdc import codecs
from cdc.position import Position
from cdc.schema import TableSchema
from connectors.postgres.drift import CatalogColumn, SchemaDrift, next_schema
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
A, B, C = SAME.columns
NEW = RelationColumn("note", codecs.TEXT, -1, False)
AT = Position(0, 100, 3)
NOTE = CatalogColumn(4, "text", codecs.TEXT, -1, None, filled=False, rewritten=False)
#: The catalog when nothing was altered.
CATALOG = {
    c.name: CatalogColumn(c.id, c.type, c.type_oid, c.typmod, None, False, False)
    for c in KNOWN.columns
}
TITLE = dataclasses.replace(B, name="title")


def with_columns(*columns):
    return dataclasses.replace(SAME, columns=columns)


def without(*names):
    return {name: found for name, found in CATALOG.items() if name not in names}


def follow(
    relation: Relation, catalog=CATALOG, policy="lenient", known: TableSchema = KNOWN
) -> TableSchema:
    def ask(names):
        return {name: catalog[name] for name in names if name in catalog}

    return next_schema(known, relation, ask, policy, AT)


def drift(*args, **options) -> str:
    with pytest.raises(SchemaDrift) as caught:
        follow(*args, **options)
    return caught.value.code


def names(columns):
    return [c.name for c in columns]


def test_the_same_relation_is_the_same_schema_without_asking():
    assert next_schema(KNOWN, SAME, lambda names: pytest.fail("asked"), "exception", AT) is KNOWN


def test_columns_at_the_end_are_added():
    relation = with_columns(*SAME.columns, NEW)
    schema = follow(relation, {"note": NOTE})
    assert schema.version == 2
    assert schema.valid_from == AT
    assert schema.columns[:3] == KNOWN.columns
    assert (schema.columns[3].id, schema.columns[3].name, schema.columns[3].type) == (
        4,
        "note",
        "text",
    )
    assert follow(relation, {}, known=schema) is schema


def test_a_number_that_is_taken_is_replaced_by_the_next():
    taken = dataclasses.replace(NOTE, number=2)
    assert follow(with_columns(*SAME.columns, NEW), {"note": taken}).columns[3].id == 4


@pytest.mark.parametrize(
    ("relation", "catalog", "code"),
    [
        (dataclasses.replace(SAME, name="orders2"), CATALOG, "table_renamed"),
        (dataclasses.replace(SAME, namespace="sales"), CATALOG, "table_renamed"),
        (dataclasses.replace(SAME, relid=9), CATALOG, "table_recreated"),
        (dataclasses.replace(SAME, identity="f"), CATALOG, "identity_changed"),
        (
            with_columns(A, TITLE, C),
            {**without("name"), "title": dataclasses.replace(NOTE, number=2)},
            "column_renamed",
        ),
        (with_columns(A, C, B), CATALOG, "columns_changed"),
        (
            with_columns(A, dataclasses.replace(B, type_oid=codecs.VARCHAR), C),
            CATALOG,
            "column_retyped",
        ),
        (with_columns(A, B, dataclasses.replace(C, typmod=655366)), CATALOG, "column_retyped"),
        (with_columns(A, dataclasses.replace(B, in_key=True), C), CATALOG, "key_changed"),
        (with_columns(dataclasses.replace(A, in_key=False), B, C), CATALOG, "key_changed"),
        (with_columns(B, C), without("id"), "key_changed"),
        (
            with_columns(A, B, C, dataclasses.replace(NEW, name="_CDC_x")),
            CATALOG,
            "reserved_column",
        ),
        # It is there, and left out by the publication.
        (with_columns(A, C), CATALOG, "columns_changed"),
        # name was dropped and total renamed to name, or the other way round.
        (
            with_columns(A, dataclasses.replace(C, name="name", type_oid=codecs.TEXT)),
            {**without("total"), "name": dataclasses.replace(NOTE, number=3)},
            "column_replaced",
        ),
        # The catalog is ahead: what total stood for then, nobody knows.
        (with_columns(A, C), without("name", "total"), "column_replaced"),
    ],
)
def test_what_no_topic_can_follow_is_named(relation, catalog, code):
    assert drift(relation, catalog) == code
    assert drift(relation, catalog, policy="try_evolve") == code
    assert drift(relation, catalog, policy="evolve") == "schema_change"
    assert drift(relation, catalog, policy="exception") == "schema_change"


@pytest.mark.parametrize(
    ("catalog", "code"),
    [
        ({"note": dataclasses.replace(NOTE, default="'x'::text")}, "column_default"),
        ({"note": dataclasses.replace(NOTE, filled=True)}, "column_default"),
        ({"note": dataclasses.replace(NOTE, rewritten=True)}, "table_rewritten"),
    ],
)
def test_a_column_that_old_rows_may_have_a_value_of_is_hidden_or_not_followed(catalog, code):
    relation = with_columns(*SAME.columns, NEW)
    assert drift(relation, catalog) == code
    assert drift(relation, catalog, policy="evolve") == "schema_change"
    assert follow(relation, catalog, policy="ignore").columns[3].hidden


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"note": dataclasses.replace(NOTE, type_oid=codecs.JSON)},
        {"note": dataclasses.replace(NOTE, again=True)},
    ],
)
def test_a_column_that_nobody_can_describe_any_more_is_followed_by_no_policy(found):
    relation = with_columns(*SAME.columns, NEW)
    assert drift(relation, found) == "column_unknown"
    assert drift(relation, found, policy="ignore") == "column_unknown"


@pytest.mark.parametrize(
    ("policy", "kept"), [("lenient", True), ("ignore", True), ("evolve", False)]
)
def test_a_dropped_column_is_kept_or_goes(policy, kept):
    schema = follow(with_columns(A, C), without("name"), policy)
    assert (schema.version, schema.valid_from) == (2, AT)
    assert names(schema.columns) == ["id", "total"]
    assert names(schema.dropped) == ["name"]
    assert names(schema.kept) == (["name"] if kept else [])
    # And so it stays.
    again = follow(with_columns(A), without("name", "total"), policy, known=schema)
    assert names(again.dropped) == ["name", "total"]
    assert again.version == 3


def test_a_name_that_was_dropped_never_means_another_column():
    after_drop = follow(with_columns(A, C), without("name"))
    for policy, code in (("lenient", "column_replaced"), ("evolve", "schema_change")):
        found = {"name": dataclasses.replace(NOTE, number=9)}
        assert drift(with_columns(A, C, B), found, policy=policy, known=after_drop) == code
    # One that differs by case is another name.
    new = {"Name": dataclasses.replace(NOTE, number=9)}
    relation = with_columns(A, C, dataclasses.replace(NEW, name="Name"))
    assert names(follow(relation, new, known=after_drop).columns)[-1] == "Name"
    # Nor in one step, where only the catalog's number tells.
    found = {**without("name", "total"), "name": dataclasses.replace(NOTE, number=9)}
    assert drift(with_columns(A, B), found) == "column_replaced"


def test_a_dropped_column_and_a_new_one_at_once():
    schema = follow(with_columns(A, C, NEW), {**without("name"), "note": NOTE})
    assert names(schema.columns) == ["id", "total", "note"]
    assert names(schema.kept) == ["name"]
    assert [c.id for c in schema.columns] == [1, 3, 4]


def test_ignored_columns_are_in_the_log_and_not_derived():
    schema = follow(with_columns(*SAME.columns, NEW), {"note": NOTE}, "ignore")
    assert names(schema.columns) == ["id", "name", "total", "note"]
    assert names(schema.derived().columns) == ["id", "name", "total"]
    # When it is dropped, nothing is left of it.
    after = follow(SAME, CATALOG, "ignore", known=schema)
    assert (names(after.dropped), names(after.kept)) == (["note"], [])


def test_a_renamed_column_that_is_ignored_reads_null_under_its_old_name():
    catalog = {**without("name"), "title": dataclasses.replace(NOTE, number=2)}
    schema = follow(with_columns(A, TITLE, C), catalog, "ignore")
    # In the order of the wire.
    assert names(schema.columns) == ["id", "title", "total"]
    assert names(schema.derived().columns) == ["id", "total"]
    assert names(schema.kept) == ["name"]
    # The next change is told from it all the same.
    del catalog["total"]
    after = follow(with_columns(A, TITLE), catalog, "ignore", known=schema)
    assert (names(after.columns), names(after.kept)) == (["id", "title"], ["name", "total"])


def test_under_full_identity_the_key_need_only_be_there():
    known = dataclasses.replace(KNOWN, identity="f")
    flagged = tuple(dataclasses.replace(c, in_key=True) for c in SAME.columns)
    relation = dataclasses.replace(SAME, identity="f", columns=flagged)
    assert follow(relation, {}, known=known) is known
