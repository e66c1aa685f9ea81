"""``cdc init``: a first cdc.yaml, with every setting explained."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command
from cdc.errors import ConfigError, EnvironmentProblem

TEMPLATE = """\
# What to capture and where to keep it. `cdc validate` checks this file.
project: {project}

log:
  # The local Kafka broker that `cdc local up` and `cdc start` bring up; or your own:
  # bootstrap_servers: kafka1:9092,kafka2:9092
  local: true
  # How far back any moment can be asked for; older changes of a row may be compacted away.
  history: 7d

lake:
  # Where the derived Delta tables are.
  path: ./lake

sources:
  {project}:
    kind: postgres
    host: localhost
    port: 5432
    database: {project}
    user: cdc
    # By reference only: {{env: NAME}} or {{file: PATH}}.
    password: {{env: {variable}_PASSWORD}}
    # Every table needs a primary key. wal_level must be logical.
    tables:
      - public.customers
      - public.orders
    snapshot:
      # Connections that copy the first load.
      workers: 2

apply:
  # How often changes are merged into the Delta tables. `cdc query` sees them at once.
  interval: 30s

spark:
  # Or spark://…, k8s://…, yarn.
  master: local[*]
  driver_memory: 2g
"""


def init(
    context: typer.Context,
    project: Annotated[str, typer.Argument(help="The project's name.")] = "shop",
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Write a first cdc.yaml, with comments; never over one that is there."""
    with command(context, "init", config, as_json, dev) as (common, output):
        from cdc.config import parse_config

        text = TEMPLATE.format(project=project, variable=project.upper())
        path = common.config_path.expanduser().absolute()
        # The name is checked by the same rules as later.
        parse_config(text.encode(), path, shown="the new file")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise ConfigError(
                "config_exists",
                f"{common.config_path} exists already and is left as it is",
                remedy="remove it first, or name another with -c FILE",
            ) from None
        except OSError as error:
            raise EnvironmentProblem(
                "config_not_written", f"{common.config_path} cannot be written: {error.strerror}"
            ) from None
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        output.answer(
            f"{common.config_path} is written: put in your database and tables, then cdc start",
            {"path": str(path)},
        )
