"""Keeps the servers of ``local: true`` up while the daemon runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from cdc.config import Config
from cdc.daemon.backoff import BackOffPolicy
from cdc.errors import EnvironmentProblem
from cdc.runtime import state_folder

if TYPE_CHECKING:
    from deploy.local.stack import LocalStack

log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 3.0


def local_stack(config: Config) -> LocalStack:
    """The stack of this project."""
    from deploy.local.stack import LocalStack

    return LocalStack(state_folder(config, "local"))


async def bring_up(config: Config) -> None:
    """Start what does not run, in a thread: HTTP answers meanwhile.

    Raises:
        EnvironmentProblem: A server cannot be had or does not start.
    """
    await asyncio.to_thread(local_stack(config).up)
    log.info("local_stack_up")


async def keep_up(config: Config) -> None:
    """Bring a server that has ended up again, until cancelled."""
    stack = local_stack(config)
    policy = BackOffPolicy(first=_LOOK_EVERY_S)
    failures = 0
    while True:
        await asyncio.sleep(policy.wait(failures + 1) if failures else _LOOK_EVERY_S)
        try:
            status = await asyncio.to_thread(stack.status)
            if not status.running:
                log.warning(
                    "local_stack_down", kafka=status.kafka_running, postgres=status.postgres_running
                )
                await bring_up(config)
            failures = 0
        except EnvironmentProblem as error:
            failures += 1
            log.warning("local_stack_not_up", code=error.code, message=error.message)
