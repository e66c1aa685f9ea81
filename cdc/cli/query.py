"""``cdc query``: one SELECT over the derived tables, fresh from the log's tail."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command
from cdc.cli.output import write

_WAIT_S = 600.0


def query(
    context: typer.Context,
    sql: Annotated[str, typer.Argument(help="One SELECT; tables as source.schema.table.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="Answer as CSV.")] = False,
    last_good: Annotated[
        bool, typer.Option("--last-good", help="Errored tables as of their last good position.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="If apply is far behind the log, wait until it is not."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Query the derived tables, all at one position of the source's history."""
    with command(context, "query", config, as_json, dev) as (common, output):
        from cdc.errors import QueryError
        from cdc.query import output as render
        from cdc.query.run import run_query

        loaded = common.load()
        try:
            result = run_query(loaded, sql, last_good=last_good, wait_s=_WAIT_S if wait else None)
        except QueryError as error:
            if error.code == "table_not_ready" and error.table is not None:
                from cdc.cli.loading import speed_words

                if words := speed_words(loaded, error.table):
                    error.message = f"{error.message}; {words}"
            raise
        for note in result.notes:
            output.note(f"note: {note}")
        if as_csv and not common.as_json:
            write(render.to_csv(result))
            output.note(render.summary(result))
            return
        output.answer(
            render.summary(result),
            render.to_json(result) if common.as_json else None,
            human=lambda: render.to_table(result),
        )
