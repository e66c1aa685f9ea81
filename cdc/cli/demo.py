"""``cdc demo``: flights of 2013 as live changes, queried, rebuilt and compared."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command


def demo(
    context: typer.Context,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="At most so many flights.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=1, help="Play for at most so long.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running afterwards.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Show everything on real data: load, change live, query, rebuild, compare."""
    with command(context, "demo", config, as_json, dev) as (common, output):
        from deploy.demo.demo import run

        result = run(rows=rows, seconds=seconds, keep=keep, as_json=common.as_json)
        output.answer("every table equals its source", result)
