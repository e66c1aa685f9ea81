"""``cdc demo``: flights of 2013 as live changes, queried, rebuilt and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdc.cli.options import DevOption, JsonOption, command, quiet_logs


def demo(
    context: typer.Context,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="At most so many of the year's 336,776 flights.")
    ] = 80_000,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Play changes for at most so long.")
    ] = 20.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running afterwards.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="An empty folder for it; a temporary one by default."),
    ] = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Show everything on real data: load, change live, query, rebuild, compare with Postgres."""
    with command(context, "demo", None, as_json, dev) as (common, output):
        quiet_logs()
        from deploy.demo.demo import Options, run
        from deploy.demo.show import Show

        result = run(Options(rows, seconds, keep, folder), Show(quiet=common.as_json))
        if common.as_json:
            output.answer("every table equalled its source at every stage", result)
