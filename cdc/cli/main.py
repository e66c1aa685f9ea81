"""Entry of ``cdc``: the list of commands, and what no command handles."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from cdc.cli import (
    demo,
    destroy,
    init,
    local,
    query,
    rebuild,
    reload,
    snapshot,
    start,
    status,
    stop,
    validate,
    verify,
)
from cdc.cli.options import DEFAULT_CONFIG, Common, ConfigOption, DevOption, JsonOption
from cdc.cli.output import Output, exact_text
from cdc.errors import CdcError, ConfigError

app = typer.Typer(
    name="cdc",
    help="Change data capture: Postgres to a Kafka log to derived Delta tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Without markup, help needs no import of rich.
    rich_markup_mode=None,
)
app.add_typer(local.app, name="local")
app.command("init")(init.init)
app.command("validate")(validate.validate)
app.command("start")(start.start)
app.command("stop")(stop.stop)
app.command("status")(status.status)
app.command("query")(query.query)
app.command("verify")(verify.verify)
app.command("rebuild")(rebuild.rebuild)
app.command("reload")(reload.reload)
app.command("snapshot")(snapshot.snapshot)
app.command("demo")(demo.demo)
app.command("destroy")(destroy.destroy)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"cdc {version('cdc')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version.")
    ] = False,
) -> None:
    """Change data capture: Postgres to a Kafka log to derived Delta tables."""
    context.obj = Common(config or DEFAULT_CONFIG, as_json, dev)


# Commands that read and answer: they start no server and close what they open themselves.
_SHORT = frozenset(("query", "status", "validate"))


def main() -> None:
    """Run one command; the exit codes are 0 ok, 1 failure, 2 configuration, 3 environment."""
    arguments = sys.argv[1:]
    exact_text(arguments)
    if _command_name(arguments) not in _SHORT:
        sys.exit(run(arguments))
    # Looking for cycles among what was imported, and taking the interpreter apart at the end,
    # cost a fifth of a small query's time.
    gc.disable()
    code = run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code."""
    output = Output(_command_name(arguments), as_json="--json" in arguments)
    try:
        code = app(args=arguments, prog_name="cdc", standalone_mode=False)
    except typer.Abort:
        print("stopped", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of a pipe has seen enough; Python would complain again at exit.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
        return 1
    except CdcError as error:
        output.failure(error)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the outermost frame of the process
        return _unforeseen(error, output, debug="--dev" in arguments)
    return code if isinstance(code, int) else 0


def _unforeseen(error: Exception, output: Output, *, debug: bool) -> int:
    usage = getattr(error, "format_message", None)
    if usage is not None:
        output.failure(ConfigError("usage", usage(), remedy=f"cdc {output.command} --help".strip()))
        return 2
    if debug:
        raise error
    # The text of a foreign error could hold a row or a secret.
    output.failure(
        CdcError(
            "internal",
            f"an error that cdc does not know: {type(error).__name__}",
            remedy="the same command with --dev shows where",
        )
    )
    return 1


def _command_name(arguments: list[str]) -> str:
    names = {command.name for command in app.registered_commands} | {"local"}
    return next((word for word in arguments if word in names), "")


if __name__ == "__main__":
    main()
