"""The command line: exit codes, the JSON envelope, errors, start-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from cdc.cli.main import run
from cdc.cli.output import human_bytes, table
from cdc.config import load_config

CONFIG = """\
project: shop
log: {bootstrap_servers: "127.0.0.1:1"}
sources:
  shop: {kind: postgres, host: h, database: d, user: u, tables: [public.t]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Any:
    (tmp_path / "cdc.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def envelope(capsys) -> dict[str, Any]:
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    record: dict[str, Any] = json.loads(lines[0])
    assert set(record) == {"v", "command", "ok", "summary", "result", "error"}
    assert record["v"] == 1
    return record


def test_validate_says_what_it_found(folder, capsys):
    assert run(["validate"]) == 0
    assert capsys.readouterr().out == "cdc.yaml is valid: project shop, 1 source(s), 1 table(s)\n"


@pytest.mark.parametrize("arguments", [["--json", "validate"], ["validate", "--json"]])
def test_json_stands_before_or_after_the_command(folder, capsys, arguments):
    assert run(arguments) == 0
    record = envelope(capsys)
    assert record["ok"] is True
    assert record["command"] == "validate"
    assert record["error"] is None
    assert record["result"]["sources"]["shop"]["tables"] == ["public.t"]


@pytest.mark.parametrize("before", [True, False])
def test_config_option_stands_before_or_after(folder, capsys, monkeypatch, before):
    (folder / "other.yaml").write_text(CONFIG.replace("project: shop", "project: other"))
    option = ["-c", "other.yaml"]
    assert run([*option, "validate"] if before else ["validate", *option]) == 0
    assert "project other" in capsys.readouterr().out


def test_a_configuration_error_ends_with_2_on_stderr(folder, capsys):
    (folder / "cdc.yaml").write_text(CONFIG.replace("tables:", "tabels:"))
    assert run(["validate"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "cdc.yaml:4:" in captured.err
    assert "did you mean tables?" in captured.err


def test_an_error_in_json_is_the_envelope(folder, capsys):
    assert run(["validate", "--json", "-c", "none.yaml"]) == 2
    error = envelope(capsys)["error"]
    assert set(error) == {"code", "message", "table", "position", "remedy"}
    assert error["code"] == "config_missing"


def test_inline_secrets_need_dev(folder, capsys):
    (folder / "cdc.yaml").write_text(CONFIG.replace("user: u,", "user: u, password: hunter2,"))
    assert run(["validate"]) == 2
    assert "hunter2" not in capsys.readouterr().err
    assert run(["--dev", "validate"]) == 0
    assert run(["validate", "--dev"]) == 0


@pytest.mark.parametrize("arguments", [["validat"], ["validate", "--no"], ["query"]])
def test_wrong_words_end_with_2(folder, capsys, arguments):
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert run([*arguments, "--json"]) == 2
    assert envelope(capsys)["error"]["code"] == "usage"


def test_a_foreign_error_tells_its_type_only(folder, capsys, monkeypatch):
    def broken(*_args, **_kwargs):
        raise RuntimeError("c4nary-row-value")

    monkeypatch.setattr("cdc.config.load_config", broken)
    assert run(["validate"]) == 1
    captured = capsys.readouterr()
    assert "RuntimeError" in captured.err
    assert "c4nary" not in captured.err
    with pytest.raises(RuntimeError):
        run(["validate", "--dev"])


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_answer_that_cannot_be_written_is_an_error_of_the_machine(folder, form):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "cdc.cli.main", "validate", *form],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 3
    first, *rest = ended.stderr.splitlines()
    assert first == "error: the answer could not be written: No space left on device"
    assert len(rest) == 1, rest  # the remedy


@pytest.mark.parametrize(
    ("form", "shown"), [([], "caf\\xe9.yaml is valid"), (["--json"], "caf\u00e9.yaml is valid")]
)
def test_what_the_terminal_does_not_know_is_escaped_for_people_only(folder, form, shown):
    (folder / "cdc.yaml").rename(folder / "caf\u00e9.yaml")
    ended = subprocess.run(
        [sys.executable, "-m", "cdc.cli.main", "-c", "caf\u00e9.yaml", "validate", *form],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert shown in ended.stdout.decode("utf-8")


def test_schema_is_printed(folder, capsys):
    assert run(["validate", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["project"]["type"] == "string"


def test_init_writes_a_valid_file_and_never_over_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["init", "orders"]) == 0
    config = load_config(tmp_path / "cdc.yaml")
    assert config.project == "orders"
    assert list(config.sources) == ["orders"]
    before = (tmp_path / "cdc.yaml").read_text()
    assert run(["init", "other"]) == 2
    assert (tmp_path / "cdc.yaml").read_text() == before
    assert run(["init", "Bad-Name", "-c", "new.yaml"]) == 2
    assert not (tmp_path / "new.yaml").exists()


def test_stop_without_a_daemon_is_fine(folder, capsys):
    assert run(["stop", "--json"]) == 0
    assert envelope(capsys)["result"] == {"stopped": False}
    assert not (folder / ".cdc").exists()


def test_rebuild_from_elsewhere_than_zero_is_refused(folder, capsys):
    assert run(["rebuild", "shop.public.t", "--from-offset", "5"]) == 2
    assert "--from-offset 0" in capsys.readouterr().err


def test_local_status_needs_no_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["local", "status", "--json"]) == 0
    record = envelope(capsys)
    assert record["command"] == "local status"
    assert record["result"]["running"] is False
    assert list(tmp_path.iterdir()) == []


def test_destroy_asks_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["destroy"]) == 0
    assert capsys.readouterr().out == "there was nothing to remove\n"
    (tmp_path / ".cdc/logs").mkdir(parents=True)
    monkeypatch.setattr("typer.prompt", lambda *_args, **_options: "no")
    assert run(["destroy"]) == 2
    assert (tmp_path / ".cdc").exists()
    assert run(["destroy", "--yes"]) == 0
    assert not (tmp_path / ".cdc").exists()


def test_destroy_of_an_unknown_source_names_the_known(folder, capsys):
    assert run(["destroy", "--source", "shp"]) == 2
    assert "one of shop" in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from cdc.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'pydantic', 'ruamel', 'rich', 'pyspark', 'pyarrow', 'duckdb', 'deltalake',"
        " 'confluent_kafka', 'psycopg', 'starlette', 'uvicorn', 'structlog'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"
    for name in ("init", "validate", "start", "stop", "status", "query", "rebuild", "destroy"):
        assert f"\n  {name} " in done.stdout


def test_tables_line_up():
    assert table(("A", "N"), [("x", 10), ("yy", None), ("z", 5)]) == (
        "A    N\nx   10\nyy   -\nz    5"
    )
    assert table(("A",), []) == "A"
    assert [human_bytes(n) for n in (None, 0, 1023, 1536, 5 << 30)] == [
        "-", "0 B", "1023 B", "1.5 kB", "5.0 GB",
    ]  # fmt: skip
