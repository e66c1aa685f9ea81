"""The daemon's HTTP, without a network."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc.daemon.http import http_app
from cdc.daemon.supervisor import Supervisor
from tests.unit.cdc.daemon.children import WELL, spec

TOKEN = "t0ken"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def supervisor(tmp_path):
    async def make() -> Supervisor:
        return Supervisor(
            [spec("capture:shop", WELL, tmp_path), spec("apply", WELL, tmp_path)],
            environment=dict(os.environ),
            folder=tmp_path,
            logs=tmp_path,
        )

    made = asyncio.run(make())
    yield made
    for log_file in made._log_files:
        log_file.close()


def call(supervisor: Supervisor, method: str, path: str, **arguments: Any) -> httpx.Response:
    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(http_app(supervisor, TOKEN))
        base = arguments.pop("base", "http://127.0.0.1:1")
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(request())


def make_ready(supervisor: Supervisor) -> None:
    for view in supervisor.views:
        view.phase, view.ready, view.ready_at, view.state = "running", True, time.monotonic(), "ok"


def test_health_and_ready_differ(supervisor):
    assert call(supervisor, "GET", "/health").json() == {"status": "ok"}
    answer = call(supervisor, "GET", "/ready")
    assert answer.status_code == 503
    assert answer.json() == {"ready": False, "reasons": ["capture:shop: new", "apply: new"]}
    make_ready(supervisor)
    assert call(supervisor, "GET", "/ready").json() == {"ready": True, "reasons": []}


def test_metrics_are_prometheus_text(supervisor):
    make_ready(supervisor)
    capture, apply = supervisor.views
    capture.restarts = 3
    capture.state = "streaming"
    capture.metrics = {
        "lag_bytes": 12,
        "records": 34,
        "position": "0001-…",
        "ok": True,
        "loads": {
            "shop.public.t": {"rows": 10, "rows_estimate": 40, "chunks_done": 1, "chunks": 4}
        },
        "columns": {"shop.public.t": {"dropped": 1, "ignored": 2}},
    }
    apply.metrics = {
        "batches": 7,
        "replicas": {
            "shop.public.t": {
                "lag_bytes": 5,
                "records": 6,
                "position": "x",
                "out_of_range_values": {"at": 3},
            }
        },
        "pending": {"shop.public.t": 8},
    }
    answer = call(supervisor, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    table, source = ("table", "shop.public.t"), ("source", "shop")
    assert samples == {
        ("cdc_ready",): 1,
        ("cdc_child_up", ("child", "capture:shop")): 1,
        ("cdc_child_up", ("child", "apply")): 1,
        ("cdc_child_ready", ("child", "capture:shop")): 1,
        ("cdc_child_ready", ("child", "apply")): 1,
        ("cdc_child_restarts_total", ("child", "capture:shop")): 3,
        ("cdc_child_restarts_total", ("child", "apply")): 0,
        ("cdc_source_state", source, ("state", "streaming")): 1,
        ("cdc_source_lag_bytes", source): 12,
        ("cdc_source_records_total", source): 34,
        ("cdc_source_columns_dropped", source, table): 1,
        ("cdc_source_columns_ignored", source, table): 2,
        ("cdc_load_rows", source, table): 10,
        ("cdc_load_rows_estimate", source, table): 40,
        ("cdc_load_chunks_done", source, table): 1,
        ("cdc_load_chunks", source, table): 4,
        ("cdc_apply_batches_total",): 7,
        ("cdc_apply_pending", table): 8,
        ("cdc_replica_lag_bytes", table): 5,
        ("cdc_replica_records", table): 6,
        ("cdc_replica_out_of_range_values_total", ("column", "at"), table): 3,
    }


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/commands"), ("GET", "/v1/commands/x"), ("GET", "/v1/status")],
)
def test_commands_need_the_token(supervisor, method, path, headers):
    answer = call(supervisor, method, path, headers=headers, content=b"{}")
    assert answer.status_code == 401
    assert TOKEN not in answer.text
    assert not supervisor.draining


def test_commands_are_idempotent_by_id(supervisor):
    body = {"id": "a/b", "verb": "stop", "args": {}}
    for _ in range(2):
        answer = call(supervisor, "POST", "/v1/commands", headers=BEARER, json=body)
        assert answer.status_code == 202
        assert answer.json()["state"] == "done"
    other = call(
        supervisor, "POST", "/v1/commands", headers=BEARER, json={**body, "args": {"x": 1}}
    )
    assert other.status_code == 409
    assert supervisor.draining


def test_a_command_can_be_asked_for(supervisor):
    body = {"id": "one", "verb": "rebuild", "args": {"table": "t"}}
    call(supervisor, "POST", "/v1/commands", headers=BEARER, json=body)
    answer = call(supervisor, "GET", "/v1/commands/one", headers=BEARER).json()
    assert (answer["state"], answer["args"]) == ("queued", {"table": "t"})
    assert call(supervisor, "GET", "/v1/commands/two", headers=BEARER).status_code == 404


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "bad_command"),
        (b"[]", 400, "bad_command"),
        (b'{"id":1,"verb":"stop"}', 400, "bad_command"),
        (b'{"id":"","verb":"stop"}', 400, "bad_command"),
        (b'{"id":"a","verb":"stop","args":[]}', 400, "bad_command"),
        (b'{"id":"a","verb":"erase"}', 400, "unknown_verb"),
        (b"x" * 100_000, 413, "body_too_large"),
    ],
)
def test_bad_commands_are_refused(supervisor, content, status, code):
    answer = call(supervisor, "POST", "/v1/commands", headers=BEARER, content=content)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


def test_a_foreign_host_name_is_refused(supervisor):
    assert call(supervisor, "GET", "/health", base="http://evil.example").status_code == 400
    assert call(supervisor, "GET", "/health", base="http://localhost:1").status_code == 200
