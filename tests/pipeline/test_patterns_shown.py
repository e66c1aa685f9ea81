"""Tables of a pattern as the user of the whole pipeline sees them come, go, and be set aside."""

import json

import psycopg
import pytest

from cdc.lake import open_replica
from cdc.log.admin import LogAdmin
from cdc.names import TableId, lake_folder
from cdc.states import READY
from tests.support.pipeline import SOURCE, Pipeline

pytestmark = pytest.mark.timeout(300)


def test_tables_of_a_pattern(stack, database, topic_prefix, tmp_path):
    def sql(*statements):
        with psycopg.connect(**database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    sql(
        "create table orders (id int primary key)",
        "insert into orders values (1), (2)",
        "create table no_key (id int)",
    )
    with Pipeline(
        tmp_path, stack.bootstrap, database, ["public.*"], prefix=topic_prefix
    ) as pipeline:

        def ready(*tables):
            def captured():
                found = pipeline.control().tables
                return all(found[TableId("public", table)].state == READY for table in tables)

            pipeline.wait_until(captured, 90, f"{tables} to be Ready", "daemon")

        def query(table):
            text = f"select count(*) from shop.public.{table}"
            done = pipeline.cli("query", "--json", text, check=False)
            answer = json.loads(done.stdout)
            return answer["result"]["rows"] if answer["ok"] else answer["error"]["code"]

        pipeline.start_daemon()
        pipeline.wait_until(lambda: pipeline.frontier() is not None, 90, "a frontier", "daemon")
        ready("orders")
        shown = pipeline.status()["sources"][SOURCE]
        assert (shown["state"], shown["tables"]["public.orders"]["state"]) == ("Ready", "Ready")
        aside = shown["tables"]["public.no_key"]
        assert aside["state"] == "Errored"
        assert "no primary key" in aside["reason"] and "ADD PRIMARY KEY" in aside["remedy"]
        assert query("no_key") == "table_errored"

        # A new table, and one that is mended: the same command captures both.
        sql(
            "create table late (id int primary key)",
            "insert into late values (1), (2), (3)",
            "alter table no_key add primary key (id)",
            "create view v as select 1 as one",
        )
        told = pipeline.cli("reload").stdout
        assert told.splitlines()[0] == (
            "captured: shop.public.late, shop.public.no_key, shop.public.orders"
        )
        assert "set aside: shop.public.v: is a view" in told and "by `except`" in told
        ready("late", "no_key")
        assert query("late") == [[3]]
        text = pipeline.cli("status").stdout
        assert "shop.public.v: is a view" in text and "  remedy: take public.v out" in text
        anew = pipeline.cli("snapshot", "shop.public.late")
        assert "loaded anew: shop.public.late (load 2)" in anew.stdout
        assert anew.stderr.splitlines()[-1] == "  shop.public.late: loaded"
        assert pipeline.cli("snapshot", "shop.other.x", check=False).returncode == 2
        late = TableId("public", "late")
        folder = lake_folder(str(pipeline.lake), SOURCE, *late)
        pipeline.wait_until(
            lambda: open_replica(folder) is not None, 120, "the derived table", "daemon", every=1
        )

        # Dropped: its data stays.
        sql("drop table late", "insert into orders values (3)")
        gone = json.loads(pipeline.cli("reload", "--json").stdout)["result"]
        assert gone["sources"][SOURCE] == ["shop.public.no_key", "shop.public.orders"]
        assert "public.late" not in pipeline.status()["sources"][SOURCE]["tables"]
        assert query("late") == "table_removed"
        pipeline.wait_until(lambda: query("orders") == [[3]], 60, "3 rows", "daemon", every=1)
        topics = {record.topic for record in pipeline.control().loads.values()}
        assert pipeline.stop("daemon") == 0
        admin = LogAdmin(stack.bootstrap)
        assert all(admin.exists(topic) for topic in topics)
        removed = json.loads(pipeline.cli("destroy", "--source", SOURCE, "--json").stdout)
        assert folder in str(removed["result"]["removed"])
        assert not any(admin.exists(topic) for topic in topics)
