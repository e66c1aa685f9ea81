"""A slow load as its user sees it: query, rebuild, status, metrics; and destroyed in its middle."""

import json
import urllib.request

import psycopg
import pytest

from cdc.log.admin import LogAdmin
from cdc.names import TableId
from cdc.states import SNAPSHOTTING
from tests.support.pipeline import SOURCE, Pipeline

T = TableId("public", "t")
ROWS = 20_000


pytestmark = pytest.mark.timeout(300)


def test_a_load_is_shown_and_destroyed_in_its_middle(stack, database, topic_prefix, tmp_path):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute(f"insert into t select generate_series(1, {ROWS})")
        connection.execute("vacuum analyze t")
    pipeline = Pipeline(
        tmp_path,
        stack.bootstrap,
        database,
        [T],
        prefix=topic_prefix,
        snapshot="{workers: 1, rows_per_second: 40}",
    )

    def loading():
        return pipeline.status()["sources"][SOURCE]["tables"].get(str(T), {}).get("loading") or {}

    with pipeline:
        pipeline.start_daemon()
        pipeline.wait_until(
            lambda: (loading().get("seconds_left") or 0) > 0, 90, "a speed", watch="daemon", every=1
        )
        shown = loading()
        assert (shown["load"], shown["state"]) == (1, "copying")
        chunks = shown["chunks"]
        assert (shown["estimate"], chunks > 1) == (ROWS, True)
        assert shown["chunks_done"] < chunks
        assert 0 < shown["rows"] < ROWS / 2
        assert 4 < shown["rows_per_second"] < 400
        # The time that is left is of rows and speed; either moved a little meanwhile.
        expected = (ROWS - shown["rows"]) / shown["rows_per_second"]
        assert shown["seconds_left"] == pytest.approx(expected, rel=0.2)
        text = pipeline.cli("status").stdout
        assert f"of about {ROWS:,}" in text and f" of {chunks} " in text

        http = json.loads((tmp_path / ".cdc/daemon.json").read_text())["http"]
        with urllib.request.urlopen(f"{http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        values = {
            line.split("{")[0]: (line.split("{")[1].split("}")[0], float(line.split()[-1]))
            for line in lines
            if line.startswith("cdc_load_")
        }
        assert values["cdc_load_rows_estimate"][1] == ROWS
        assert values["cdc_load_chunks"][1] == chunks
        assert values["cdc_load_chunks_done"][1] < chunks
        assert 0 < values["cdc_load_rows"][1] < ROWS
        assert 'source="shop"' in values["cdc_load_rows"][0]
        assert 'table="shop.public.t"' in values["cdc_load_rows"][0]

        refused = pipeline.cli("query", "--json", "select count(*) from shop.public.t", check=False)
        assert refused.returncode == 1
        error = json.loads(refused.stdout)["error"]
        assert (error["code"], error["table"]) == ("table_not_ready", "shop.public.t")
        assert error["message"].startswith("the table is Snapshotting, load 1: ")
        assert f" of {chunks} chunks are copied" in error["message"]
        assert "rows per second, about" in error["message"]
        rebuilt = pipeline.cli("rebuild", "shop.public.t", "--json", check=False)
        assert rebuilt.returncode == 1
        error = json.loads(rebuilt.stdout)["error"]
        assert (error["code"], error["table"]) == ("not_ready", "shop.public.t")
        assert SNAPSHOTTING in error["message"]
        assert pipeline.stop("daemon") == 0

        record = pipeline.control().loads[T, 1]
        admin = LogAdmin(stack.bootstrap)
        assert admin.exists(record.topic) and admin.exists(record.spool)
        # Without a daemon there is no speed, and all the rest.
        shown = loading()
        assert shown["chunks"] == chunks and shown["rows_per_second"] is None
        done = pipeline.cli("destroy", "--source", SOURCE, "--json")
        removed = json.loads(done.stdout)["result"]["removed"]
        assert f"2 topic(s) of source {SOURCE}" in removed
        for topic in (record.topic, record.spool, f"{topic_prefix}{SOURCE}.__cdc"):
            assert not admin.exists(topic)
