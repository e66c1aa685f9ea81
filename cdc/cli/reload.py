"""``cdc reload``: capture the tables that cdc.yaml names now, without a restart."""

from __future__ import annotations

from collections.abc import Iterator

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
        captured: dict[str, list[str]] = {}
        aside: dict[str, dict[str, str | None]] = {}
        for name, source in loaded.sources.items():
            args = {
                "source": name,
                "tables": [[id.schema, id.table] for id in source.table_ids],
                "patterns": [pattern.to_json() for pattern in source.patterns],
                "keys": [[*id, list(key)] for id, key in source.keys.items()],
                "schema_policies": source.schema_policies.to_json(),
            }
            answer = wait_for_command(daemon, send_command(daemon, "tables", args))
            captured[name] = answer["tables"]
            aside |= answer["set_aside"]
        listed = ", ".join(table for tables in captured.values() for table in tables)
        summary = f"captured: {listed or 'no table'}"
        output.answer(
            summary,
            {"sources": captured, "set_aside": aside},
            human=lambda: "\n".join([summary, *_told(aside)]),
        )


def _told(aside: dict[str, dict[str, str | None]]) -> Iterator[str]:
    for table, why in aside.items():
        yield f"set aside: {table}: {why['reason']}"
        if why["remedy"]:
            yield f"  remedy: {why['remedy']}"
