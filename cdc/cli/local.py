"""``cdc local``: the Kafka broker and the Postgres server of ``local: true``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from cdc.cli.options import Common, ConfigOption, DevOption, JsonOption, command, quiet_logs
from cdc.cli.output import table

if TYPE_CHECKING:
    from deploy.local.stack import LocalStack, StackStatus

app = typer.Typer(
    help="The local Kafka broker and Postgres server.", no_args_is_help=True, rich_markup_mode=None
)


def local_stack(common: Common) -> LocalStack:
    """The stack beside the configuration file, which need not exist yet."""
    from deploy.local.stack import LocalStack

    return LocalStack(common.config_path.expanduser().absolute().parent / ".cdc" / "local")


@app.command("up")
def up(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Start both servers, or those that do not run, and wait until they answer."""
    with command(context, "local up", config, as_json, dev) as (common, output):
        quiet_logs()
        from cdc.runtime import make_state_folder

        make_state_folder(common.config_path.expanduser().absolute().parent / ".cdc")
        stack = local_stack(common)
        output.note("starting the local Postgres and Kafka …")
        stack.up()
        status = stack.status()
        output.answer("the local stack is up", _describe(status), human=lambda: _human(status))


@app.command("down")
def down(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Stop both servers; their data stays."""
    with command(context, "local down", config, as_json, dev) as (common, output):
        quiet_logs()
        if common.config_path.exists():
            _refuse_under_a_daemon(common)
        local_stack(common).down()
        output.answer("the local stack is down; its data is kept", {"running": False})


def _refuse_under_a_daemon(common: Common) -> None:
    from cdc.daemon.record import is_locked
    from cdc.errors import ConfigError

    config = common.load()
    if config.uses_local_stack and is_locked(config):
        raise ConfigError(
            "daemon_running",
            "the daemon uses the local stack and would bring it up again",
            remedy="cdc stop, then cdc local down",
        )


@app.command("status")
def status(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """What runs, and where."""
    with command(context, "local status", config, as_json, dev) as (common, output):
        status = local_stack(common).status()
        words = "runs" if status.running else "does not run"
        output.answer(f"the local stack {words}", _describe(status), human=lambda: _human(status))


def _describe(status: StackStatus) -> dict[str, Any]:
    state = status.state
    return {
        "running": status.running,
        "kafka": {
            "running": status.kafka_running,
            "bootstrap_servers": state.kafka.bootstrap_servers if state else None,
        },
        "postgres": {
            "running": status.postgres_running,
            "host": state.postgres.host if state else None,
            "port": state.postgres.port if state else None,
            "user": state.postgres.user if state else None,
        },
    }


def _human(status: StackStatus) -> str:
    state = status.state
    rows = [
        (
            "kafka",
            "runs" if status.kafka_running else "stopped",
            state.kafka.bootstrap_servers if state else None,
        ),
        (
            "postgres",
            "runs" if status.postgres_running else "stopped",
            f"{state.postgres.host}:{state.postgres.port}" if state else None,
        ),
    ]
    return table(("SERVER", "STATE", "ADDRESS"), rows)
