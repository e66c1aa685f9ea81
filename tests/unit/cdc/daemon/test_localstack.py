"""The daemon brings servers of the local stack up again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from cdc.daemon import localstack
from cdc.errors import EnvironmentProblem

CONFIG: Any = None


@dataclass
class Status:
    kafka_running: bool
    postgres_running: bool = True

    @property
    def running(self) -> bool:
        return self.kafka_running and self.postgres_running


class Stack:
    """Kafka ends now and then; the first ``up`` after that may fail."""

    def __init__(self) -> None:
        self.running = False
        self.failures = 0
        self.ups = 0

    def status(self) -> Status:
        return Status(self.running)

    def up(self) -> None:
        self.ups += 1
        if self.failures:
            self.failures -= 1
            raise EnvironmentProblem("port_taken", "a port is taken")
        self.running = True


@pytest.fixture
def stack(monkeypatch):
    made = Stack()
    monkeypatch.setattr(localstack, "local_stack", lambda _config: made)
    monkeypatch.setattr(localstack, "_LOOK_EVERY_S", 0.02)
    return made


def test_a_dead_server_comes_back_and_failures_do_not_end_the_watch(stack):
    async def scenario():
        await localstack.bring_up(CONFIG)
        watch = asyncio.create_task(localstack.keep_up(CONFIG))
        await asyncio.sleep(0.2)
        assert stack.ups == 1
        stack.failures = 2
        stack.running = False
        async with asyncio.timeout(5):
            while not stack.running:
                await asyncio.sleep(0.01)
        assert stack.ups == 4
        watch.cancel()

    asyncio.run(scenario())


def test_a_start_that_fails_is_told(stack):
    stack.failures = 1
    with pytest.raises(EnvironmentProblem, match="port is taken"):
        asyncio.run(localstack.bring_up(CONFIG))
