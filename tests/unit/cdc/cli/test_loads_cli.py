"""``cdc snapshot`` and ``cdc reload``: what is refused before a daemon is asked, what is sent."""

import io
import sys
from typing import Any

import pytest

from cdc.cli.main import run
from cdc.daemon import client, record
from tests.unit.cdc.cli.test_cli import envelope, folder  # noqa: F401 - a fixture

TABLE = "shop.public.t"


@pytest.fixture
def daemon(monkeypatch):
    """A daemon that says yes; gives what it was sent."""
    sent = []

    def send(_daemon, verb, args):
        sent.append((verb, args))
        names = [".".join([args["source"], *table]) for table in args["tables"]]
        return {"loads": dict.fromkeys(names, 2), "tables": names, "set_aside": ASIDE}

    monkeypatch.setattr(record, "running_daemon", lambda config: object())
    monkeypatch.setattr(client, "send_command", send)
    monkeypatch.setattr(client, "wait_for_command", wait)
    monkeypatch.setattr(client, "daemon_status", lambda _daemon: {"children": [CAPTURE]})
    return sent


ASIDE = {"shop.public.v": {"reason": "it is a view", "remedy": "leave it out"}}
CAPTURE = {
    "name": "capture:shop",
    "loads": {
        TABLE: {
            "number": 2, "rows": 1200, "rows_estimate": 5000, "chunks_done": 3, "chunks": 13,
            "rows_per_second": 949.6, "seconds_left": 4.1,
        }
    },
}  # fmt: skip


def wait(_daemon, asked, on_progress=lambda progress: None, on_poll=lambda: None):
    on_poll()
    on_progress({"rows": dict.fromkeys(asked["tables"], 0), "waiting": asked["tables"]})
    on_poll()
    return asked


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["snapshot", "shop.public.other"], "unknown_table", 2),
        (["snapshot", TABLE, "--pause", "--cancel"], "usage", 2),
        (["snapshot", TABLE], "no_daemon", 3),
        (["reload"], "no_daemon", 3),
    ],
)
def test_what_is_refused(folder, capsys, arguments, code, exit_code):  # noqa: F811
    assert run([*arguments, "--json"]) == exit_code
    error = envelope(capsys)["error"]
    assert error["code"] == code
    assert error["message"]


def test_a_new_load(folder, capsys, daemon):  # noqa: F811
    assert run(["snapshot", TABLE, TABLE, "--priority", "3", "--json"]) == 0
    assert envelope(capsys)["result"] == {"loads": {TABLE: 2}}
    args = {"source": "shop", "tables": [["public", "t"]], "priority": 3}
    assert daemon == [("snapshot", args)]


WORDS = "3 of 13 chunks, 1,200 rows, 950 rows/s, 4 s left"


def test_a_load_is_told_of_in_lines(folder, capsys, daemon):  # noqa: F811
    assert run(["snapshot", TABLE]) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [f"  {TABLE}: {WORDS}", f"  {TABLE}: loaded"]
    assert shown.out == f"loaded anew: {TABLE} (load 2)\n"
    assert run(["snapshot", TABLE, "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_a_load_is_drawn_on_a_terminal(folder, capsys, daemon, monkeypatch):  # noqa: F811
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["snapshot", TABLE]) == 0
    drawn = terminal.getvalue()
    assert "━" in drawn
    assert f"{TABLE} " in drawn and " loaded" in drawn
    assert capsys.readouterr().out == f"loaded anew: {TABLE} (load 2)\n"
    # A terminal that cannot move its cursor gets lines.
    monkeypatch.setattr(sys, "stderr", dumb := Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert run(["snapshot", TABLE]) == 0
    assert dumb.getvalue().splitlines()[0] == f"  {TABLE}: {WORDS}"


def test_tables_of_a_pattern(folder, capsys, daemon):  # noqa: F811
    path = folder / "cdc.yaml"
    path.write_text(path.read_text().replace("public.t]", "public.t, 'sales.*']"))
    assert run(["snapshot", "shop.sales.a", 'shop.sales."a"', "shop.sales.b.c", "--json"]) == 2
    assert "shop.sales.b.c" in envelope(capsys)["error"]["message"]
    assert run(["snapshot", "shop.sales.a", 'shop.sales."a"', TABLE, "--json"]) == 0
    assert daemon[0][1]["tables"] == [["sales", "a"], ["public", "t"]]


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel"])
def test_a_load_under_way(folder, capsys, daemon, verb):  # noqa: F811
    assert run(["snapshot", TABLE, f"--{verb}", "--json"]) == 0
    assert envelope(capsys)["result"] == {"tables": [TABLE]}
    assert [sent for sent, _ in daemon] == [verb]


TABLES = "{name: public.t, key: [a, b]}, {name: 'a.*', except: [a.b]}]"


def test_reload(folder, capsys, daemon):  # noqa: F811
    assert run(["reload", "--json"]) == 0
    assert envelope(capsys)["result"] == {"sources": {"shop": [TABLE]}, "set_aside": ASIDE}
    told: dict[str, Any] = {
        "source": "shop",
        "tables": [["public", "t"]],
        "patterns": [],
        "keys": [],
        "schema_policies": {
            "default": "lenient",
            "tables": [[{"name": "public.t", "except": []}, "lenient"]],
        },
    }
    assert daemon == [("tables", told)]
    path = folder / "cdc.yaml"
    path.write_text(path.read_text().replace("public.t]", TABLES))
    assert run(["reload"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"captured: {TABLE}",
        "set aside: shop.public.v: it is a view",
        "  remedy: leave it out",
    ]
    patterns = [{"name": "a.*", "except": ["a.b"]}]
    told |= {"patterns": patterns, "keys": [["public", "t", ["a", "b"]]]}
    told["schema_policies"]["tables"].append([patterns[0], "lenient"])
    assert daemon[1] == ("tables", told)
