"""``cdc start``: the daemon, in the foreground or detached."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command


def start(
    context: typer.Context,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return as soon as the daemon answers.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Capture the sources and keep the derived tables up, until ``cdc stop`` or Ctrl-C."""
    with command(context, "start", config, as_json, dev) as (common, output):
        loaded = common.load()
        if detach:
            from cdc.daemon.client import start_detached

            running = start_detached(loaded)
            output.answer(
                f"the daemon runs (pid {running.pid}), {running.http}",
                {"pid": running.pid, "http": running.http},
            )
            return
        from cdc.daemon.run import run_daemon

        run_daemon(loaded, on_started=lambda url: output.note(f"the daemon runs, {url}"))
        output.answer("the daemon has stopped", {"stopped": True})
