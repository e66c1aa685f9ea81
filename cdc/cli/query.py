"""``cdc query``: one SELECT over the derived tables, fresh from the log's tail."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command


def query(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(help="One SELECT; tables as source.schema.table.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Answer as CSV.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Query the derived tables, all at one position of the source's history."""
    with command(context, "query", config, as_json, dev) as (common, _output):
        from cdc.query.run import run_query

        run_query(common.load(), sql, as_json=common.as_json, as_csv=as_csv)
