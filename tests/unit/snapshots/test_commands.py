import dataclasses
import os

import pytest

from snapshots.commands import Commands
from snapshots.messages import CopyChunk, SetRate, command_line
from snapshots.rate import RateLimit
from tests.unit.snapshots.test_messages import SETUP, TASK

TAKEN = dataclasses.replace(TASK, left=())


@pytest.fixture
def pipe():
    read, write = os.pipe()
    ends = {read, write}

    def close():
        ends.discard(write)
        os.close(write)

    yield read, lambda data: os.write(write, data), close
    for end in ends:
        os.close(end)


def test_the_setup_comes_first_with_whatever_follows(pipe):
    read, say, end = pipe
    say(SETUP.to_line() + command_line(TASK) + command_line(CopyChunk(1))[:5])
    commands = Commands(read, RateLimit())
    assert commands.setup() == SETUP
    assert commands.topics() == [TASK.topic]
    say(command_line(CopyChunk(1))[5:])
    end()
    assert list(commands) == [TAKEN, CopyChunk(1)]


def test_no_setup(pipe):
    read, say, end = pipe
    say(SETUP.to_line()[:-1])
    end()
    assert Commands(read, RateLimit()).setup() is None


def test_rates_overtake_chunks(pipe):
    read, say, end = pipe
    rate = RateLimit()
    commands = Commands(read, rate)
    say(SETUP.to_line())
    commands.setup()
    say(command_line(CopyChunk(1)) + command_line(SetRate(7.5)) + command_line(CopyChunk(2)))
    commands.look()
    assert rate.rows_per_second == 7.5
    end()
    assert list(commands) == [CopyChunk(1), CopyChunk(2)]


def test_chunks_of_a_locked_table_are_dropped_up_to_the_next_task(pipe):
    read, say, end = pipe
    commands = Commands(read, RateLimit())
    say(SETUP.to_line())
    commands.setup()
    for command in (CopyChunk(1), CopyChunk(2), TASK, CopyChunk(0)):
        say(command_line(command))
    commands.look()
    end()
    assert commands.drop_chunks() == 2
    assert list(commands) == [TAKEN, CopyChunk(0)]
