"""``cdc stop``: end the daemon, after what it has begun."""

from __future__ import annotations

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command


def stop(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Stop the daemon; it drains for up to 30 seconds. The local stack stays up."""
    with command(context, "stop", config, as_json, dev) as (common, output):
        from cdc.daemon.client import stop_daemon

        stopped = stop_daemon(common.load())
        if stopped is None:
            output.answer("no daemon runs", {"stopped": False})
        else:
            output.answer(f"the daemon (pid {stopped}) has stopped", {"stopped": True})
