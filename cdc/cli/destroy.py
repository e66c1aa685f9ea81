"""``cdc destroy``: take a source, or the whole project, back to before its first start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.cli.local import local_stack
from cdc.cli.options import Common, ConfigOption, DevOption, JsonOption, command, quiet_logs
from cdc.cli.output import Output
from cdc.errors import ConfigError

if TYPE_CHECKING:
    from cdc.config import Config


def destroy(
    context: typer.Context,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help="Only this source; its database and the rest stay."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Remove slots, publications, topics and derived tables; without --source the local stack too.

    The tables of a source's database stay, unless it is the local one and no --source is given.
    """
    with command(context, "destroy", config, as_json, dev) as (common, output):
        quiet_logs()
        if source:
            removed = _destroy_sources(common, output, source, yes)
        else:
            removed = _destroy_all(common, output, yes)
        text = "\n".join(f"  {item}" for item in removed)
        output.answer(
            f"removed {len(removed)} thing(s)",
            {"removed": removed},
            human=lambda: f"removed:\n{text}" if removed else "there was nothing to remove",
        )


def _destroy_sources(common: Common, output: Output, names: list[str], yes: bool) -> list[str]:
    from cdc.cli.removal import remove_source
    from cdc.daemon.record import is_locked

    config = common.load()
    for name in names:
        if name not in config.sources:
            raise ConfigError(
                "unknown_source",
                f"cdc.yaml has no source {name}",
                remedy="one of " + ", ".join(sorted(config.sources)),
            )
    if is_locked(config):
        raise ConfigError(
            "daemon_running", "the daemon of this project runs", remedy="cdc stop, then again"
        )
    _confirm(
        yes or output.as_json,
        "This drops slot, publication, topics and derived tables of "
        f"{', '.join(names)}; the next start loads them anew.",
        names[0],
    )
    return [item for name in names for item in remove_source(config, config.sources[name])]


def _destroy_all(common: Common, output: Output, yes: bool) -> list[str]:
    config = common.load() if common.config_path.exists() else None
    state = common.config_path.expanduser().absolute().parent / ".cdc"
    stack = local_stack(common)
    what = ["the local stack with the databases in it"] if stack.state_dir.exists() else []
    if config is not None:
        what.append(f"slots, topics and derived tables of {', '.join(config.sources)}")
    if not what and not state.exists():
        return []
    _confirm(
        yes or output.as_json,
        f"This removes {' and '.join(what) or str(state)}.",
        config.project if config is not None else "yes",
    )
    removed = _remove_pipeline(config, output) if config is not None else []
    if stack.state_dir.exists():
        stack.destroy()
        removed.append("the local stack")
    return removed + _remove_state(state)


def _remove_pipeline(config: Config, output: Output) -> list[str]:
    from cdc.cli.removal import remove_replicas, remove_source, replicas
    from cdc.daemon.client import stop_daemon

    if stop_daemon(config) is not None:
        output.note("the daemon has stopped")
    removed = []
    for source in config.sources.values():
        if source.local and config.log.local:
            # Slot and topics go with their servers, which need not run for that.
            removed += remove_replicas(config, replicas(config, source, None))
        else:
            removed += remove_source(config, source)
    return removed


def _remove_state(state: Path) -> list[str]:
    from cdc.cli.removal import remove_folder

    if not state.exists():
        return []
    remove_folder(state)
    return [str(state)]


def _confirm(given: bool, what: str, word: str) -> None:
    if given:
        return
    typer.echo(what, err=True)
    if typer.prompt(f"Type {word} to go on", default="", show_default=False, err=True) != word:
        raise ConfigError("not_confirmed", "nothing was removed", remedy="cdc destroy --yes")
