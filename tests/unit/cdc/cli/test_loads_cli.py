"""``cdc snapshot`` and ``cdc reload``: what is refused before a daemon is asked, what is sent."""

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
        return {"loads": dict.fromkeys(names, 2), "tables": names}

    monkeypatch.setattr(record, "running_daemon", lambda config: object())
    monkeypatch.setattr(client, "send_command", send)
    monkeypatch.setattr(client, "wait_for_command", lambda _daemon, asked, *show: asked)
    return sent


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


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel"])
def test_a_load_under_way(folder, capsys, daemon, verb):  # noqa: F811
    assert run(["snapshot", TABLE, f"--{verb}", "--json"]) == 0
    assert envelope(capsys)["result"] == {"tables": [TABLE]}
    assert [sent for sent, _ in daemon] == [verb]


def test_reload(folder, capsys, daemon):  # noqa: F811
    assert run(["reload", "--json"]) == 0
    assert envelope(capsys)["result"] == {"sources": {"shop": [TABLE]}}
    assert daemon == [("tables", {"source": "shop", "tables": [["public", "t"]]})]
