"""``cdc destroy``: remove the local stack and ``.cdc``; never anything on another machine."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.cli.local import local_stack
from cdc.cli.options import Common, ConfigOption, DevOption, JsonOption, command
from cdc.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from cdc.config import Config


def destroy(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    lake: Annotated[
        bool, typer.Option("--lake", help="Remove the derived tables of cdc.yaml too.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Stop everything local and remove its data: broker, Postgres, logs."""
    with command(context, "destroy", config, as_json, dev) as (common, output):
        loaded = common.load() if lake or common.config_path.exists() else None
        if loaded is not None:
            from cdc.daemon.client import stop_daemon

            _confirm(yes or as_json, f"Remove the local stack of {loaded.root} and its data?")
            if stop_daemon(loaded) is not None:
                output.note("the daemon has stopped")
        else:
            _confirm(yes or as_json, "Remove the local stack of this folder and its data?")
        removed = _remove(common, loaded if lake else None)
        left = _left_behind(loaded)
        output.answer(
            "removed: " + (", ".join(removed) or "nothing"),
            {"removed": removed, "left": left},
            human=lambda: "\n".join(
                ["removed: " + (", ".join(removed) or "nothing"), *map("left: {}".format, left)]
            ),
        )


def _confirm(given: bool, question: str) -> None:
    if not given and not typer.confirm(question):
        raise ConfigError("not_confirmed", "nothing was removed", remedy="cdc destroy --yes")


def _remove(common: Common, lake_of: Config | None) -> list[str]:
    removed = []
    state = common.config_path.expanduser().absolute().parent / ".cdc"
    stack = local_stack(common)
    if stack.state_dir.exists():
        stack.destroy()
        removed.append("local stack")
    try:
        if lake_of is not None:
            from pathlib import Path

            for name in lake_of.sources:
                folder = Path(lake_of.lake.path) / name
                if folder.exists():
                    shutil.rmtree(folder)
                    removed.append(str(folder))
        if state.exists():
            shutil.rmtree(state)
            removed.append(str(state))
    except OSError as error:
        raise EnvironmentProblem(
            "not_removed", f"{error.filename} cannot be removed: {error.strerror}"
        ) from None
    return removed


def _left_behind(config: Config | None) -> list[str]:
    """What stays on servers that are not ours, with the SQL that removes it."""
    if config is None:
        return []
    left = []
    for name, source in config.sources.items():
        if not source.local:
            left.append(
                f"source {name}: the slot holds WAL until "
                f"SELECT pg_drop_replication_slot('{source.slot_name}');"
            )
    if not config.log.local:
        left.append(f"topics in Kafka that begin with {config.log.topic_prefix or 'a source name'}")
    return left
