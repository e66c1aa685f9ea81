"""``cdc reload``: capture the tables that cdc.yaml names now, without a restart."""

from __future__ import annotations

from typing import Any

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command
from cdc.errors import EnvironmentProblem


def reload(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Begin with tables that are new in cdc.yaml, end with those that are gone from it."""
    with command(context, "reload", config, as_json, dev) as (common, output):
        from cdc.daemon.client import send_command, wait_for_command
        from cdc.daemon.record import running_daemon

        loaded = common.load()
        daemon = running_daemon(loaded)
        if daemon is None:
            raise EnvironmentProblem(
                "no_daemon",
                "no daemon of this project runs, so there is nothing to tell",
                remedy="cdc start reads cdc.yaml by itself",
            )
        captured: dict[str, Any] = {}
        for name, source in loaded.sources.items():
            tables = [[id.schema, id.table] for id in source.table_ids]
            asked = send_command(daemon, "tables", {"source": name, "tables": tables})
            captured[name] = wait_for_command(daemon, asked)["tables"]
        listed = ", ".join(table for tables in captured.values() for table in tables)
        output.answer(f"captured: {listed}", {"sources": captured})
