"""No secret and no row value reaches a log, whatever happens to the source."""

from __future__ import annotations

import json
import os
import signal

import psycopg
import pytest

from cdc.config import load_config
from cdc.daemon.client import daemon_status
from cdc.daemon.record import running_daemon
from cdc.names import TableId
from cdc.states import READY
from tests.support.pipeline import Pipeline

CANARY = "c4nary-row-value"


@pytest.mark.timeout(180)
def test_logs_hold_no_secret_and_no_row_value(stack, database, topic_prefix, tmp_path):
    def sql(text: str) -> None:
        with psycopg.connect(**database, autocommit=True) as connection:
            connection.execute(text)

    sql("create table t (id int primary key, secret text)")
    sql(f"insert into t select g, '{CANARY}' || g from generate_series(1, 100) g")
    tables = [TableId("public", "t")]
    with Pipeline(tmp_path, stack.bootstrap, database, tables, prefix=topic_prefix) as pipeline:
        pipeline.start_daemon()
        pipeline.wait_until(lambda: pipeline.frontier() is not None, 60, "the snapshot", "daemon")
        sql(f"update t set secret = '{CANARY}x' where id < 10")
        pipeline.wait_captured(watch="daemon")
        config = load_config(pipeline.config_path)

        def child(name: str):
            daemon = running_daemon(config)
            assert daemon is not None
            return next(c for c in daemon_status(daemon)["children"] if c["name"] == name)

        def wait_restarted(times: int) -> None:
            def restarted() -> bool:
                capture = child("capture:shop")
                return bool(capture["restarts"] >= times and capture["ready"])

            pipeline.wait_until(restarted, 60, f"restart {times}", "daemon")

        # A process that is killed, a connection that is lost, and a table that is set aside.
        os.kill(child("capture:shop")["pid"], signal.SIGKILL)
        wait_restarted(1)
        sql(
            "select pg_terminate_backend(active_pid) from pg_replication_slots"
            " where database = current_database()"
        )
        wait_restarted(2)
        sql("alter table t alter column secret type bytea using convert_to(secret, 'UTF8')")
        sql(f"insert into t values (1000, '{CANARY}')")

        def loaded_anew() -> bool:
            record = pipeline.control().tables[tables[0]]
            return bool(record.load > 1 and record.state == READY)

        pipeline.wait_until(loaded_anew, 60, "the load of the altered table", "daemon")
        assert "set aside" in (tmp_path / ".cdc/logs/capture.shop.jsonl").read_text()
        assert pipeline.running("daemon")
        pipeline.cli("status", "--json", check=False)
        assert pipeline.stop("daemon") == 0

    logs = sorted((tmp_path / ".cdc/logs").iterdir())
    assert {"daemon.jsonl", "capture.shop.jsonl", "apply.jsonl"} <= {log.name for log in logs}
    for log in [*logs, tmp_path / "daemon.log"]:
        text = log.read_text()
        assert CANARY not in text, log
        assert database["password"] not in text, log
        if log.suffix == ".jsonl":
            for line in text.splitlines():
                assert isinstance(json.loads(line), dict)
