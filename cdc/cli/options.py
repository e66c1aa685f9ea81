"""Options that every command has: before the command's name or after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.cli.output import Output, reporting

if TYPE_CHECKING:
    from cdc.config import Config

DEFAULT_CONFIG = Path("cdc.yaml")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The configuration file.", metavar="FILE"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer as one JSON object.")]
DevOption = Annotated[bool, typer.Option("--dev", help="Accept secrets written in cdc.yaml.")]


@dataclass(frozen=True, slots=True)
class Common:
    """The options of one call, from both places where they may stand."""

    config_path: Path
    as_json: bool
    dev: bool

    def load(self) -> Config:
        """The configuration that the call names.

        Raises:
            ConfigError: It is not right.
        """
        from cdc.config import load_config

        # None leaves it to the environment.
        return load_config(self.config_path, dev=True if self.dev else None)


def quiet_logs() -> None:
    """Warnings of what a command runs in its own process go to stderr; stdout is the answer."""
    import logging

    from cdc.logging import configure_logging

    configure_logging("cdc", level=logging.WARNING, human=True)


@contextlib.contextmanager
def command(
    context: typer.Context, name: str, config: Path | None, as_json: bool, dev: bool
) -> Iterator[tuple[Common, Output]]:
    """The frame of every command: its options, its output, its exit code.

    Raises:
        typer.Exit: When the command ends with a CdcError.
    """
    before = context.find_root().obj
    given = before if isinstance(before, Common) else Common(DEFAULT_CONFIG, False, False)
    common = Common(config or given.config_path, as_json or given.as_json, dev or given.dev)
    with reporting(Output(name, as_json=common.as_json)) as output:
        yield common, output
