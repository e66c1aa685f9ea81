import stat
from dataclasses import replace

import pytest

from cdc.errors import EnvironmentProblem
from deploy.local.stack import LocalStack
from deploy.local.state import KafkaState, PostgresState, StackState, read_json, write_json

STATE = StackState(
    KafkaState("127.0.0.1:9092", 9092, 9093, "cluster", "/k", 1, 1.5),
    PostgresState(
        "127.0.0.1",
        5432,
        "postgres",
        "s3cret",
        "postgres",
        "/p",
        "/p/data",
        "/p/run",
        "/b",
        17,
        "postgres",
        2,
        2.5,
    ),
)


def test_state_survives_the_file_and_is_private(tmp_path):
    path = tmp_path / "state.json"
    write_json(path, STATE.to_json())
    record = read_json(path)
    assert record is not None
    assert StackState.from_json(record, path) == STATE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "state.json"
    write_json(path, {"v": 1})
    with pytest.raises(TypeError):
        write_json(path, {"v": object()})
    assert read_json(path) == {"v": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_unknown_fields_are_ignored(tmp_path):
    record = STATE.to_json()
    record["later"] = record["kafka"]["later"] = 1
    assert StackState.from_json(record, tmp_path) == STATE


@pytest.mark.parametrize("text", ["", "[]", "{", '{"v": 2}', '{"v": 1, "kafka": {}}'])
def test_an_unreadable_state_is_refused_with_a_remedy(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(EnvironmentProblem) as caught:
        LocalStack(tmp_path).status()
    assert caught.value.code == "local_state_unreadable"
    assert caught.value.remedy


def test_the_password_is_not_in_the_text_form():
    assert "s3cret" not in repr(STATE)
    assert STATE != replace(STATE, postgres=replace(STATE.postgres, password="other"))


def test_a_stack_that_was_never_up(tmp_path):
    stack = LocalStack(tmp_path / "local")
    status = stack.status()
    assert (status.state, status.running) == (None, False)
    stack.down()
    stack.destroy()
    assert not (tmp_path / "local").exists()
