"""Parts of the demo: its flights, its transactions, its folder, what it shows."""

from __future__ import annotations

import itertools
import json

import pytest

from cdc.errors import CdcError, ConfigError
from deploy.demo import daemon as demo_daemon
from deploy.demo.daemon import Daemon
from deploy.demo.data import FLIGHTS, TABLES, read
from deploy.demo.live import transactions
from deploy.demo.play import changes, scheduled_at
from deploy.demo.project import DATABASE, SOURCE, create_project
from deploy.demo.samples import samples
from deploy.demo.seed import split
from deploy.demo.show import Show


@pytest.fixture(scope="module")
def some():
    return list(itertools.islice(read(FLIGHTS), 25_000))


@pytest.fixture(scope="module")
def flights(some):
    return split(some, 20_000)


def test_flights_are_split_in_the_order_of_their_schedule(some, flights):
    times = [scheduled_at(flight) for flight in [*flights.past, *flights.live]]
    assert times == sorted(map(scheduled_at, some))[:20_000]
    assert (len(flights.past), len(flights.live)) == (18_000, 2_000)
    assert flights.live_from == flights.live[0][list(FLIGHTS.columns).index("time_hour")]


def test_a_transaction_is_what_happens_together(flights):
    planned = changes(flights.live)
    grouped = list(transactions(planned))
    assert [change for group in grouped for change in group] == planned
    spans = [(group[-1].at - group[0].at).total_seconds() for group in grouped]
    assert max(spans) < 600
    assert 1 < len(planned) / len(grouped) < 100


@pytest.mark.parametrize("rows, live", [(1, 1), (400, 400), (3_000, 500)])
def test_a_small_demo_plays_a_larger_part(some, rows, live):
    flights = split(some, rows)
    assert (len(flights.past), len(flights.live)) == (rows - live, live)


def test_the_queries_ask_for_the_flights_that_are_played():
    for sample in samples("2013-12-01T05:00:00Z"):
        assert "'2013-12-01T05:00:00Z'" in sample.sql
        assert "LIVE_FROM" not in sample.sql


# --- folder ---


def test_a_project_is_one_that_a_user_could_have(tmp_path):
    project = create_project(tmp_path / "demo", outlives=False)
    source = project.config.sources[SOURCE]
    assert source.local
    assert source.database == DATABASE
    assert [id.table for id in source.table_ids] == [table.name for table in TABLES]
    assert project.made
    project.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_user_stays(tmp_path):
    project = create_project(tmp_path, outlives=False)
    (tmp_path / "lake" / SOURCE).mkdir(parents=True)
    project.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("…")
    with pytest.raises(ConfigError) as refused:
        create_project(tmp_path, outlives=False)
    assert refused.value.code == "demo_folder"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


# --- troubles of the daemon ---


def child(**changed):
    made = {
        "name": "apply",
        "phase": "running",
        "ready": False,
        "restarts": 0,
        "state": "starting",
        "error": None,
    }
    return {**made, **changed}


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """A daemon that says what the test wants, in place of one that runs."""
    made = Daemon(create_project(tmp_path / "demo", outlives=False))
    answer: dict[str, list[dict[str, object]]] = {}
    monkeypatch.setattr(Daemon, "record", None)
    monkeypatch.setattr(demo_daemon, "daemon_status", lambda record: answer)
    return made, answer


def test_children_at_work_are_no_trouble(daemon):
    made, answer = daemon
    answer["children"] = [child(), child(name="capture:nyc", phase="waiting", restarts=1)]
    assert set(made.children()) == {"apply", "capture:nyc"}


@pytest.mark.parametrize("changed", [{"phase": "down"}, {"phase": "waiting", "restarts": 3}])
def test_a_child_that_fails_ends_the_demo_with_its_error(daemon, changed):
    made, answer = daemon
    error = {"code": "value_out_of_range", "message": "a date", "table": "nyc.t", "remedy": "fix"}
    answer["children"] = [child(error=error, **changed)]
    with pytest.raises(CdcError) as failed:
        made.children()
    assert failed.value.code == "value_out_of_range"
    assert failed.value.table == "nyc.t"
    assert "apply" in failed.value.message and "a date" in failed.value.message


def test_a_child_that_came_back_is_no_trouble(daemon):
    made, answer = daemon
    answer["children"] = [child(restarts=5, ready=True)]
    assert made.children()["apply"]["ready"]


def test_the_tail_has_troubles_only(daemon):
    made, _ = daemon
    made._output.write_text("the daemon runs\n")
    lines = [
        {"event": "copied", "level": "info", "rows": 5},
        {"event": "apply ends", "level": "error", "code": "spark_failed", "message": "Spark fails"},
    ]
    log = made._output.with_name("apply.jsonl")
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{cut off")
    assert made.tail() == ["the daemon runs", "apply: apply ends; spark_failed; Spark fails"]


# --- what is shown ---


def test_a_pipe_gets_plain_lines_and_no_flood(capsys):
    show = Show()
    with show.step("First"):
        for number in range(1000):
            show.progress(f"{number} done")
        show.good("all is well")
    out = capsys.readouterr().out
    assert out.splitlines() == ["", "1  First", "   ✓ all is well"]


def test_long_lines_are_not_broken_in_a_pipe(capsys):
    Show().say("word " * 60)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_quiet_says_nothing_on_stdout(capsys):
    show = Show(quiet=True)
    with show.step("First"):
        show.progress("…")
        show.say("a line")
        show.good("all is well")
    show.trouble(["a trouble"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "   a trouble\n"
