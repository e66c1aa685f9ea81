"""``cdc snapshot``: load tables anew from the source, while they stay served."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command
from cdc.cli.output import Output
from cdc.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from cdc.config import Config
    from cdc.names import TableId


def snapshot(
    context: typer.Context,
    tables: Annotated[list[str], typer.Argument(help="The tables: source.schema.table …")],
    priority: Annotated[
        int, typer.Option(help="Loads with a higher one are copied first.", min=0)
    ] = 0,
    pause: Annotated[bool, typer.Option("--pause", help="Copy nothing more for now.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on copying.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="End a load of tables that stay as they are.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Load tables anew: into topics of their own, switched to when they are whole."""
    with command(context, "snapshot", config, as_json, dev) as (common, output):
        asked = [
            verb
            for verb, wanted in (("pause", pause), ("resume", resume), ("cancel", cancel))
            if wanted
        ]
        if len(asked) > 1:
            raise ConfigError("usage", "only one of --pause, --resume and --cancel at a time")
        verb = asked[0] if asked else "snapshot"
        result = _ask(common.load(), tables, output, verb, priority)
        if verb == "snapshot":
            listed = ", ".join(f"{name} (load {number})" for name, number in result.items())
            output.answer(f"loaded anew: {listed}", {"loads": result})
        else:
            output.answer(f"{verb}: {', '.join(result)}", {"tables": sorted(result)})


def _ask(
    config: Config, tables: list[str], output: Output, verb: str, priority: int
) -> dict[str, int]:
    """Table to the number of its load (0 if that does not matter)."""
    from cdc.cli.load_bars import LoadBars, LoadLines, LoadView
    from cdc.cli.loading import load_figures
    from cdc.daemon.client import daemon_status, send_command, wait_for_command
    from cdc.daemon.record import running_daemon
    from cdc.names import TableId

    wanted = _by_source(config, tables)
    daemon = running_daemon(config)
    if daemon is None:
        raise EnvironmentProblem(
            "no_daemon",
            "no daemon of this project runs, and a load needs its stream",
            remedy="cdc start --detach, then cdc snapshot again",
        )

    asked = [
        send_command(daemon, verb, {"source": source, "tables": ids, "priority": priority})
        for source, ids in wanted.items()
    ]
    found: dict[str, int] = {}
    if verb != "snapshot":
        for request in asked:
            found |= dict.fromkeys(wait_for_command(daemon, request)["tables"], 0)
        return found
    names = [f"{source}.{TableId(*id)}" for source, ids in wanted.items() for id in ids]
    terminal = output.terminal
    view: LoadView = (
        LoadLines(names, output.note) if terminal is None else LoadBars(names, terminal)
    )

    def progress(command: dict[str, Any]) -> None:
        view.loaded([name for name in command["rows"] if name not in command["waiting"]])

    def figures() -> None:
        view.show(load_figures(daemon_status(daemon)["children"]))

    with view:
        for request in asked:
            done = wait_for_command(daemon, request, progress, on_poll=figures)["loads"]
            view.loaded(list(done))
            found |= done
    return found


def _by_source(config: Config, tables: list[str]) -> dict[str, list[list[str]]]:
    """Source to its tables among ``tables``, each as schema and name; named twice counts once.

    Raises:
        ConfigError: ``unknown_table``.
    """
    known = {
        f"{name}.{id}": (name, id)
        for name, source in config.sources.items()
        for id in source.table_ids
    }
    wanted: dict[str, list[list[str]]] = {}
    for table in dict.fromkeys(tables):
        found = known.get(table) or _matching(config, table)
        if found is None:
            names = (f"{name}.{t.name}" for name, s in config.sources.items() for t in s.tables)
            raise ConfigError(
                "unknown_table",
                f"cdc.yaml names no table {table}",
                table=table,
                remedy="one of " + ", ".join(sorted(names)),
            )
        source, id = found
        ids = wanted.setdefault(source, [])
        if list(id) not in ids:
            ids.append(list(id))
    return wanted


def _matching(config: Config, text: str) -> tuple[str, TableId] | None:
    """Source and table of a name that a pattern covers; the source knows whether it is there."""
    from cdc.table_names import parse_table_name

    source, _, rest = text.partition(".")
    with contextlib.suppress(ValueError, KeyError):
        id = parse_table_name(rest)
        if config.sources[source].covers(id):
            return source, id
    return None
