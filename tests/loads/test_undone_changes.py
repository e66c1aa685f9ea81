"""Changes at the source that were undone before anybody looked, or that only traces tell of.

The catalog looks as before, or as after something harmless, and yet what was in between is not in
the stream, or was printed otherwise. Each table is set aside and loaded anew.
"""

import dataclasses
import threading

import pytest

from tests.support.capturing import Capturing, assert_log_is_source
from tests.support.gated import Gate

pytestmark = pytest.mark.timeout(300)

#: By table: how it is made, and what is done to it while nobody captures.
STORIES = {
    "renamed_label": (
        (
            "create type mood as enum ('low', 'high')",
            "create table renamed_label (id int primary key, m mood)",
            "insert into renamed_label values (1, 'low')",
        ),
        (
            "alter type mood rename value 'low' to 'other'",
            "insert into renamed_label values (2, 'other')",
            "alter type mood rename value 'other' to 'low'",
        ),
    ),
    "label_in_a_multirange": (
        (
            "create type grade as enum ('a', 'b', 'c')",
            "create type grades as range (subtype = grade, multirange_type_name = gradess)",
            "create table label_in_a_multirange (id int primary key, r gradess)",
            "insert into label_in_a_multirange values (1, '{[a,b]}')",
        ),
        ("alter type grade rename value 'b' to 'B'",),
    ),
    "attribute": (
        (
            "create type pair as (a int, b text)",
            "create table attribute (id int primary key, p pair)",
            "insert into attribute values (1, '(1,x)')",
        ),
        (
            "alter type pair add attribute c int",
            "insert into attribute values (2, '(2,y,9)')",
            "alter type pair drop attribute c",
        ),
    ),
    "unique_index": (
        (
            "create table unique_index (a int not null, b int not null)",
            "create unique index one on unique_index (a)",
            "alter table unique_index replica identity full",
            "insert into unique_index values (1, 1), (2, 2)",
        ),
        (
            "drop index one",
            "insert into unique_index values (1, 5)",
            "delete from unique_index where b = 1",
            "create unique index one on unique_index (a)",
        ),
    ),
    "wider_key": (
        (
            "create table wider_key (a int not null, b int not null, primary key (a))",
            "alter table wider_key replica identity full",
            "insert into wider_key values (1, 1), (2, 2)",
        ),
        (
            "alter table wider_key drop constraint wider_key_pkey, add primary key (a, b)",
            "insert into wider_key values (1, 5)",
            "delete from wider_key where b = 1",
            "alter table wider_key drop constraint wider_key_pkey, add primary key (a)",
        ),
    ),
    "generated": (
        (
            "create table generated"
            " (id int primary key, g int generated always as (id * 2) stored)",
            "insert into generated values (1)",
        ),
        ("alter table generated alter g drop expression", "insert into generated values (2, 5)"),
    ),
    "generated_and_quiet": (
        (
            "create table generated_and_quiet"
            " (id int primary key, g int generated always as (id * 2) stored)",
            "insert into generated_and_quiet values (1)",
        ),
        ("alter table generated_and_quiet alter g drop expression",),
    ),
    "default_of_partitions": (
        (
            "create table default_of_partitions (id int primary key) partition by range (id)",
            "create table dp1 partition of default_of_partitions for values from (1) to (10)",
            "insert into default_of_partitions values (1)",
        ),
        (
            "alter table default_of_partitions add d int default 5",
            "alter table default_of_partitions alter d drop default",
        ),
    ),
}
#: What is done to tables that goes on within their load.
HARMLESS = {
    "reindexed": (
        (
            "create table reindexed (a int not null, constraint only_one unique (a))",
            "alter table reindexed replica identity full",
            "insert into reindexed values (1)",
        ),
        ("reindex table concurrently reindexed", "insert into reindexed values (2)"),
    ),
    "more_labels": (
        (
            "create type size as enum ('s', 'l')",
            "create table more_labels (id int primary key, s size)",
            "insert into more_labels values (1, 's')",
        ),
        ("alter type size add value 'm' before 'l'", "insert into more_labels values (2, 'm')"),
    ),
}

#: What is done to partitioned tables while they are captured.
PARTITIONS = {
    "filled_partition": (
        (
            "create table filled_partition (id int primary key) partition by range (id)",
            "create table fp1 partition of filled_partition for values from (1) to (10)",
            "insert into filled_partition values (1)",
        ),
        (
            (
                "create table fp2 (id int primary key)",
                "insert into fp2 values (10)",
                "alter table filled_partition attach partition fp2 for values from (10) to (20)",
            ),
        ),
    ),
    "renamed_partition": (
        (
            "create table renamed_partition (id int primary key) partition by range (id)",
            "create table rp1 partition of renamed_partition for values from (1) to (10)",
            "create table before (id int primary key)",
            "insert into before values (10)",
        ),
        (
            (
                "alter table before rename to rp2",
                "alter table renamed_partition attach partition rp2 for values from (10) to (20)",
            ),
        ),
    ),
    "partition_of_defaults": (
        (
            "create table partition_of_defaults (id int default 0 primary key)"
            " partition by range (id)",
        ),
        (
            (
                "create table pd1 partition of partition_of_defaults for values from (1) to (9)",
                "insert into partition_of_defaults values (1)",
            ),
        ),
    ),
}


@pytest.fixture
def capturing(stack, database, topic_prefix):
    def make(tables):
        gate = Gate()
        gate.open_to(10**6)
        return Capturing(stack.bootstrap, database, topic_prefix, tables, make_copier=gate)

    return make


def run(source, statements):
    for statement in statements:
        if isinstance(statement, tuple):
            source.transaction(*statement)
        else:
            source.execute(statement)


def test_what_only_traces_tell_of_loads_the_table_anew(capturing):
    stories = STORIES | HARMLESS
    source = capturing(list(stories))
    for make, _ in stories.values():
        run(source, make)
    with source.running():
        source.wait_ready(60)
    for _, change in stories.values():
        run(source, change)
    with source.running():
        for table in STORIES:
            source.wait_loaded(table, 2)
        source.caught_up()
        assert_log_is_source(source, list(stories))
    assert {source.record(table).load for table in HARMLESS} == {1}


def test_partitions_that_have_rows_already_load_the_table_anew(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source = capturing(list(PARTITIONS))
    for make, _ in PARTITIONS.values():
        run(source, make)
    with source.running():
        source.wait_ready(60)
        # Two looks later the partitions are known.
        threading.Event().wait(1.5)
        for _, change in PARTITIONS.values():
            run(source, change)
        source.wait_loaded("filled_partition", 2)
        source.wait_loaded("renamed_partition", 2)
        source.caught_up()
        assert_log_is_source(source, list(PARTITIONS))
    assert source.record("partition_of_defaults").load == 1


def test_what_a_transaction_did_before_a_label_was_renamed_is_not_replayed(capturing, monkeypatch):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 0.3)
    source = capturing(["moods"])
    source.execute(
        "create type mood as enum ('low', 'high')",
        "create table moods (id int primary key, m mood)",
        "insert into moods values (1, 'low')",
    )
    with source.running(), source.connect(autocommit=False) as other:
        source.wait_ready()
        other.execute("insert into moods values (2, 'low')")
        source.execute("alter type mood rename value 'low' to 'blue'")
        source.wait_until(lambda: len(source.control().loads) == 2, 30, "the next load")
        # It has time to begin, which it must not yet.
        threading.Event().wait(1)
        other.commit()
        source.wait_loaded("moods", 2)
        source.caught_up()
        assert_log_is_source(source, ["moods"])


@pytest.mark.parametrize("captured", [True, False])
def test_a_publication_that_was_altered_for_a_while_loads_its_tables_anew(
    capturing, monkeypatch, captured
):
    monkeypatch.setattr("connectors.postgres.source_watch._EVERY_S", 1.5)
    source = capturing(["orders"])
    name = source.settings.publication
    source.execute(
        "create table orders (id int primary key)",
        "insert into orders values (1), (2)",
    )
    altered = (
        f"alter publication {name} set (publish = 'insert')",
        "delete from orders where id = 1",
        f"alter publication {name} set (publish = 'insert, update, delete, truncate')",
    )
    with source.running():
        source.wait_ready()
        if captured:
            source.execute(*altered)
            source.wait_loaded("orders", 2)
    if not captured:
        source.execute(*altered)
    with source.running():
        source.wait_loaded("orders", 2)
        source.caught_up()
        assert_log_is_source(source, ["orders"])


def test_tables_that_left_a_publications_schema_for_a_while_are_loaded_anew(capturing):
    source = capturing(["dropped", "moved", "stays"])
    if source.rows("show server_version_num")[0][0] < "150000":
        pytest.skip("publications of schemas came with Postgres 15")
    for table in ("dropped", "moved", "stays"):
        source.execute(f"create table {table} (id int primary key)")
    source.execute("create schema other", "create publication theirs for tables in schema public")
    settings = dataclasses.replace(source.settings, publication="theirs", manage_publication=False)
    with source.running(settings):
        source.wait_ready()
    source.execute(
        "alter table moved set schema other",
        "insert into other.moved values (1)",
        "alter table other.moved set schema public",
    )
    with source.running(settings):
        source.wait_loaded("moved", 2)
        source.caught_up()
        assert source.record("stays").load == 1
    source.execute(
        "alter publication theirs drop tables in schema public",
        "insert into dropped values (1)",
        "alter publication theirs add tables in schema public",
    )
    with source.running(settings):
        source.wait_loaded("dropped", 2)
        source.caught_up()
        assert_log_is_source(source, ["dropped", "moved", "stays"])
