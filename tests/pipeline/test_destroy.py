"""``cdc destroy --source``: back to before the first start, and nothing of others is touched."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from cdc.errors import LogError
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.names import TableId, lake_folder
from tests.support.pipeline import SOURCE, Pipeline

T = TableId("public", "t")


@pytest.mark.timeout(180)
def test_a_destroyed_source_is_loaded_anew(stack, database, topic_prefix, tmp_path):
    def sql(text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(**database, autocommit=True) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    def slots() -> set[str]:
        rows = sql("select slot_name from pg_replication_slots where database = current_database()")
        return {name for (name,) in rows}

    sql("create table t (id int primary key)")
    sql("insert into t select generate_series(1, 100)")
    sql("create publication other for table t")
    sql("select pg_create_logical_replication_slot('other_' || pg_backend_pid(), 'pgoutput')")
    others = slots()
    with Pipeline(tmp_path, stack.bootstrap, database, [T], prefix=topic_prefix) as pipeline:
        pipeline.start_capture()
        pipeline.wait_captured()
        first = LogReader(stack.bootstrap, topic_prefix=topic_prefix)
        topic = first.control_state(SOURCE).tables[T].topic
        first.close()
        # In use: refused, and all of it stays.
        refused = pipeline.cli("destroy", "--source", SOURCE, "--yes", check=False)
        assert refused.returncode == 1
        assert "pg_terminate_backend" in refused.stderr or "active" in refused.stderr
        assert pipeline.stop("capture") == 0

        replica = tmp_path / "lake/shop/public/t"
        assert str(replica) == lake_folder(str(tmp_path / "lake"), SOURCE, "public", "t")
        (replica / "_delta_log").mkdir(parents=True)
        mine = tmp_path / "lake/shop/public/mine"
        mine.mkdir()
        done = pipeline.cli("destroy", "--source", SOURCE, "--json")
        removed = json.loads(done.stdout)["result"]["removed"]
        assert len(removed) == 4, removed
        assert slots() == others
        assert sql("select pubname from pg_publication") == [("other",)]
        admin = LogAdmin(stack.bootstrap)
        for name in (topic, f"{topic_prefix}{SOURCE}.__cdc", f"{topic_prefix}{SOURCE}.__frontier"):
            assert not admin.exists(name)
        assert not replica.exists()
        assert mine.exists()
        assert sql("select count(*) from t") == [(100,)]
        # Again: nothing is left to remove.
        again = pipeline.cli("destroy", "--source", SOURCE, "--json")
        assert json.loads(again.stdout)["result"]["removed"] == []
        with pytest.raises(LogError):
            LogReader(stack.bootstrap, topic_prefix=topic_prefix).control_state(SOURCE)

        sql("insert into t values (101)")
        pipeline.start_capture()
        pipeline.wait_captured()
        assert pipeline.query("select count(*) from shop.public.t") == [[101]]
        assert pipeline.stop("capture") == 0
