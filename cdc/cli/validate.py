"""``cdc validate``: is cdc.yaml right? Reads nothing else, connects to nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command
from cdc.cli.output import print_json


def validate(
    context: typer.Context,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of cdc.yaml instead.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Check cdc.yaml; every problem is named with file, line and column."""
    with command(context, "validate", config, as_json, dev) as (common, output):
        if schema:
            from cdc.config.jsonschema import config_schema

            print_json(config_schema())
            return
        loaded = common.load()
        tables = sum(len(source.table_ids) for source in loaded.sources.values())
        patterns = sum(len(source.patterns) for source in loaded.sources.values())
        count = f"{tables} table(s)" + (f", {patterns} pattern(s) of tables" if patterns else "")
        output.answer(
            f"{common.config_path} is valid: project {loaded.project}, "
            f"{len(loaded.sources)} source(s), {count}",
            {
                "project": loaded.project,
                "sources": {
                    name: {
                        "slot": source.slot_name,
                        "publication": source.publication_name,
                        "tables": [str(table) for table in source.table_ids],
                        "patterns": [pattern.text for pattern in source.patterns],
                    }
                    for name, source in loaded.sources.items()
                },
            },
        )
