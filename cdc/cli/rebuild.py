"""``cdc rebuild``: fold a derived table anew from the log, without touching the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command, quiet_logs
from cdc.cli.output import Output
from cdc.errors import ConfigError

if TYPE_CHECKING:
    from cdc.config import Config


def rebuild(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="The table: source.schema.table.")],
    from_offset: Annotated[
        int, typer.Option("--from-offset", help="Where in the log to begin; 0 is its start.")
    ] = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Rebuild one table from offset zero; the old one is served until the new one is whole."""
    with command(context, "rebuild", config, as_json, dev) as (common, output):
        if from_offset != 0:
            raise ConfigError(
                "from_offset",
                "a table is rebuilt from the start of the log only",
                table=table,
                remedy=f"cdc rebuild {table} --from-offset 0",
            )
        result = _rebuild(common.load(), table, output)
        output.answer(f"{table} has been rebuilt", result, human=lambda: _human(table, result))


def _rebuild(config: Config, table: str, output: Output) -> dict[str, Any]:
    from cdc.daemon.client import send_command, wait_for_command
    from cdc.daemon.record import running_daemon

    def show(progress: dict[str, Any]) -> None:
        words = ", ".join(f"{key} {value}" for key, value in progress.items())
        output.note(f"  {words}")

    daemon = running_daemon(config)
    if daemon is not None:
        output.note(f"asking the daemon to rebuild {table} …")
        asked = send_command(daemon, "rebuild", {"table": table, "from_offset": 0})
        return wait_for_command(daemon, asked, show)
    output.note(f"rebuilding {table} …")
    quiet_logs()
    from spark_jobs.rebuild import rebuild as rebuild_now

    return rebuild_now(config, table, on_progress=show)


def _human(table: str, result: dict[str, Any]) -> str:
    details = ", ".join(f"{key} {value}" for key, value in result.items())
    return f"{table} has been rebuilt" + (f": {details}" if details else "")
