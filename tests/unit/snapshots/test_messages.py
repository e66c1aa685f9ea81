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
from cdc.load import LoadTask
from snapshots.messages import (
    Done,
    Failed,
    Ready,
    WorkerSetup,
    Written,
    range_line,
    read_message,
    read_range,
)
from snapshots.plan import BlockRange
from tests.support.schemas import all_types_schema

SETUP = WorkerSetup(
    number=2,
    project="shop",
    source="main",
    conninfo={"host": "db", "port": 5432, "password": "made-up secret"},
    snapshot="00000003-0000001B-1",
    consistent_point=0x16B3750,
    epoch=1,
    taken_us=1_700_000_000_000_000,
    origin=Origin("1.0", "main", "shop"),
    bootstrap_servers="localhost:9092",
    log_options={"sasl.password": "another made-up secret"},
    max_message_bytes=1_000_000,
    tasks=(LoadTask(all_types_schema(load=3, version=2), 16400, "main.public.orders--3", 4),),
)


def test_setup_round_trip():
    line = SETUP.to_line()
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert WorkerSetup.from_line(line) == SETUP


def test_setup_shows_no_secret():
    assert "secret" not in repr(SETUP)


@pytest.mark.parametrize(
    "message", [Ready(), Written(20_000), Done(3, {"a": {0: 7, 11: 1}, "b": {}}), Done(0, {})]
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


@pytest.mark.parametrize("blocks", [BlockRange(0, 0, None), BlockRange(7, 100, 4_294_967_294)])
def test_ranges_round_trip(blocks):
    assert read_range(range_line(blocks)) == blocks


def test_unknown_message_is_refused():
    with pytest.raises(ValueError, match="not a message"):
        read_message(b'{"say":"hello"}\n')
