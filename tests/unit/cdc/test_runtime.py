"""The .cdc folder, and what local: true and the rest of cdc.yaml stand for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cdc.config import Config, load_config
from cdc.errors import ConfigError, EnvironmentProblem
from cdc.runtime import read_json, resolve, resolve_log, state_folder, write_json

LOCAL = """\
project: shop
log: {local: true}
sources:
  shop: {kind: postgres, local: true, database: shop, tables: [public.t]}
"""
REMOTE = """\
project: shop
log:
  bootstrap_servers: a:1,b:2
  security:
    {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: u, password: {env: KAFKA_PW}}
sources:
  shop:
    kind: postgres
    host: HOST
    database: d
    user: u
    password: {env: SHOP_PW}
    tables: [public.t]
"""
STATE = {
    "v": 1,
    "kafka": {"bootstrap_servers": "127.0.0.1:9"},
    "postgres": {
        "host": "127.0.0.1", "port": 5, "user": "postgres", "password": "l0calpw", "database": "x",
    },
}  # fmt: skip


def config(folder: Path, text: str) -> Config:
    (folder / "cdc.yaml").write_text(text)
    return load_config(folder / "cdc.yaml")


def local_state(folder: Path, state: object) -> None:
    (folder / ".cdc/local").mkdir(parents=True, exist_ok=True)
    (folder / ".cdc/local/state.json").write_text(json.dumps(state))


def test_local_addresses_come_from_the_stack(tmp_path):
    loaded = config(tmp_path, LOCAL)
    local_state(tmp_path, STATE)
    endpoints = resolve(loaded)
    assert endpoints.bootstrap_servers == "127.0.0.1:9"
    assert endpoints.log_options == {}
    assert endpoints.conninfo("shop") == {
        "host": "127.0.0.1",
        "port": "5",
        "user": "postgres",
        "password": "l0calpw",
        "dbname": "shop",
        "connect_timeout": "10",
    }
    assert "l0calpw" not in repr(endpoints)


def test_without_a_stack_the_remedy_is_to_start_it(tmp_path):
    with pytest.raises(EnvironmentProblem) as caught:
        resolve(config(tmp_path, LOCAL))
    assert caught.value.code == "local_stack_missing"
    assert caught.value.remedy == "cdc local up"


@pytest.mark.parametrize("state", [{**STATE, "v": 2}, {"v": 1}, {**STATE, "kafka": {}}, []])
def test_a_foreign_state_file_is_refused(tmp_path, state):
    loaded = config(tmp_path, LOCAL)
    local_state(tmp_path, state)
    with pytest.raises(EnvironmentProblem):
        resolve(loaded)


def test_remote_addresses_and_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_PW", "kafkasecret")
    monkeypatch.setenv("SHOP_PW", "shopsecret")
    endpoints = resolve(config(tmp_path, REMOTE.replace("HOST", "db.internal")))
    assert endpoints.bootstrap_servers == "a:1,b:2"
    assert endpoints.log_options == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "kafkasecret",
    }
    assert endpoints.conninfo("shop")["password"] == "shopsecret"
    assert "secret" not in repr(endpoints)


def test_the_log_alone_needs_no_secret_of_a_source(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_PW", "kafkasecret")
    monkeypatch.delenv("SHOP_PW", raising=False)
    loaded = config(tmp_path, REMOTE)
    assert resolve_log(loaded)[0] == "a:1,b:2"
    with pytest.raises(ConfigError, match="SHOP_PW"):
        resolve(loaded)


@pytest.mark.parametrize(
    ("host", "sslmode"),
    [
        ("db.internal", "require"),
        ("10.0.0.1", "require"),
        ("127.0.0.1", "prefer"),
        ("localhost", "prefer"),
        ("/run/postgresql", "prefer"),
    ],
)
def test_nothing_goes_over_a_network_in_the_clear(tmp_path, monkeypatch, host, sslmode):
    monkeypatch.setenv("KAFKA_PW", "x")
    monkeypatch.setenv("SHOP_PW", "x")
    loaded = config(tmp_path, REMOTE.replace("HOST", host))
    assert resolve(loaded).conninfo("shop")["sslmode"] == sslmode


def test_the_folder_is_for_its_owner_only(tmp_path):
    loaded = config(tmp_path, LOCAL)
    folder = state_folder(loaded, "logs")
    assert folder == tmp_path / ".cdc/logs"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert state_folder(loaded, "logs") == folder


def test_json_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff"])
def test_a_broken_file_is_an_environment_problem(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(EnvironmentProblem) as caught:
        read_json(path)
    assert caught.value.code == "state_unreadable"
