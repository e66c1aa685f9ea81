import dataclasses

import pytest

from cdc.envelope import Origin
from cdc.errors import (
    CdcError,
    EnvironmentProblem,
    LogError,
    ProtocolViolation,
    SourceError,
    SourceRefused,
)
from cdc.load import ChunkPlan, LoadTask, Piece
from snapshots.messages import (
    Blocked,
    CopyChunk,
    Done,
    Failed,
    Ready,
    RowsWritten,
    SetRate,
    WorkerSetup,
    command_line,
    read_command,
    read_message,
)
from tests.support.schemas import all_types_schema

SETUP = WorkerSetup(
    number=2,
    project="shop",
    source="main",
    conninfo={"host": "db", "port": 5432, "password": "made-up secret"},
    epoch=1,
    origin=Origin("1.0", "main", "shop"),
    bootstrap_servers="localhost:9092",
    log_options={"sasl.password": "another made-up secret"},
    topic="main.public.orders",
)
LEAVES = ChunkPlan((Piece(8192, 7, (16400,)), Piece(3, 1, (16410, 16420))))
TASK = LoadTask(
    schema=all_types_schema(load=3, version=2),
    filenode=16400,
    topic="main.public.orders--3",
    partitions=4,
    spool_from=0x16B3750,
    plan=ChunkPlan.whole(8192, 7),
    left=(0, 3),
)


@pytest.mark.parametrize("setup", [SETUP, dataclasses.replace(SETUP, topic=None)])
def test_setup_round_trip(setup):
    line = setup.to_line()
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert WorkerSetup.from_line(line) == setup


def test_setup_shows_no_secret():
    assert "secret" not in repr(SETUP)


@pytest.mark.parametrize(
    "command",
    [
        dataclasses.replace(TASK, left=(), plan=LEAVES),
        dataclasses.replace(TASK, left=()),
        CopyChunk(6),
        SetRate(1234.5),
    ],
)
def test_commands_round_trip(command):
    line = command_line(command)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert read_command(line) == command


def test_what_is_left_of_a_task_is_the_copiers_own_matter():
    assert read_command(command_line(TASK)) == dataclasses.replace(TASK, left=())


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        RowsWritten(20_000),
        Done(3, {"a": {0: 7, 11: 1}, "b": {}}, 1.25),
        Done(0, {}, 0.0),
        Blocked(("pid 17", "a prepared transaction")),
        Blocked(()),
    ],
)
def test_messages_round_trip(message):
    line = message.to_line()
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert read_message(line) == message


@pytest.mark.parametrize(
    "kind",
    [CdcError, EnvironmentProblem, LogError, ProtocolViolation, SourceError, SourceRefused],
)
def test_errors_keep_kind_and_fields(kind):
    error = kind("bad_thing", "it is\nbad", table="public.a", position="0/1", remedy="mend it")
    line = Failed(error).to_line()
    assert line.count(b"\n") == 1
    message = read_message(line)
    assert isinstance(message, Failed)
    again = message.error
    assert type(again) is kind
    assert again.to_json() == error.to_json()


def test_unknown_lines_are_refused():
    with pytest.raises(ValueError, match="not a message"):
        read_message(b'{"say":"hello"}\n')
    with pytest.raises(ValueError, match="not a command"):
        read_command(b'{"do":"nothing"}\n')
