"""``cdc verify``: proof that derived tables equal their source at one exact position."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command, quiet_logs
from cdc.cli.output import write
from cdc.errors import CdcError, LakeError, QueryError
from cdc.position import format_lsn

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from cdc.config import Config
    from cdc.verify.result import TableResult, VerifyResult
    from cdc.verify.sides import SourceSnapshot


def verify(
    context: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="The tables: source.schema.table …; without any, all Ready ones."),
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Also the values that differ, not only the keys.")
    ] = False,
    limit: Annotated[int, typer.Option(help="List so many keys of a table at most.", min=1)] = 100,
    replica: Annotated[
        bool,
        typer.Option("--replica", help="Compare the replica alone, without the log behind it."),
    ] = False,
    wait: Annotated[
        float, typer.Option(help="Wait for the log for so many seconds at most.", min=0)
    ] = 60.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Compare derived tables with the source, row by row, at one exact position."""
    with command(context, "verify", config, as_json, dev) as (common, output):
        from cdc.verify.run import VerifyOptions, run_verify

        quiet_logs()
        loaded = common.load()

        def show(result: TableResult) -> None:
            if not common.as_json:
                write(_words(result) + "\n")

        result = run_verify(
            loaded,
            tables or [],
            lambda source: _open(loaded, source, wait),
            VerifyOptions(limit, values, replica, wait),
            show,
        )
        error = _error(result)
        if error is not None:
            output.failure(error, result.to_json())
            raise typer.Exit(error.exit_code)
        output.answer(_summary(result), result.to_json())


def _open(config: Config, source: str, wait_s: float) -> AbstractContextManager[SourceSnapshot]:
    from cdc.runtime import source_conninfo
    from connectors.postgres.verify_source import open_snapshot

    return open_snapshot(source_conninfo(config, config.sources[source]), wait_s)


def _summary(result: VerifyResult) -> str:
    from cdc.verify.result import EQUAL, LEFT_OUT

    equal, out = len(result.of(EQUAL)), len(result.of(LEFT_OUT))
    left = f"; {out} not Ready, left out" if out else ""
    return f"{equal} table{'' if equal == 1 else 's'} equal{left}"


def _error(result: VerifyResult) -> CdcError | None:
    """What the command ends with: a difference before everything else."""
    from cdc.verify.result import DIFFERENT, EQUAL, REFUSED

    if different := result.of(DIFFERENT):
        return LakeError(
            "tables_differ",
            f"{len(different)} of {len(result.tables)} tables differ from the source: "
            + ", ".join(table.table for table in different),
            remedy="cdc rebuild TABLE --from-offset 0 makes a derived table anew from the log; if "
            "it still differs, cdc snapshot TABLE loads it anew from the source",
        )
    refused = result.of(REFUSED)
    if refused and refused[0].error is not None:
        return refused[0].error
    if not result.of(EQUAL):
        return QueryError(
            "nothing_to_verify",
            "no table is Ready",
            remedy="cdc status shows how far the loads are; without a daemon, cdc start",
        )
    return None


def _words(result: TableResult) -> str:
    """A table's outcome, and the keys that differ."""
    from cdc.verify.result import KINDS

    if result.position is None:
        reason = "" if result.error is None else f": {result.error.message}"
        return f"{result.table}: {result.outcome.replace('_', ' ')}{reason}"
    at, took = format_lsn(result.position.lsn), f"{result.seconds:.1f} s"
    if not result.differing_ranges:
        lines = [f"{result.table}: equal, {result.source_rows:,} rows at {at} ({took})"]
    else:
        counts = ", ".join(f"{n} {kind}" for kind, n in result.counts.items() if n)
        more = "" if result.complete else ", and more"
        lines = [
            f"{result.table}: DIFFERENT at {at}: {counts}{more}; the source has "
            f"{result.source_rows:,} rows, the derived table {result.derived_rows:,} ({took})"
        ]
    width = max(map(len, KINDS))
    for difference in result.differences:
        columns = f"  in {', '.join(difference.columns)}" if difference.columns else ""
        lines.append(f"  {difference.kind:{width}}  {_json(difference.key)}{columns}")
        for side, row in (("source", difference.source), ("derived", difference.derived)):
            if row is not None:
                lines.append(f"  {'':{width}}    {side}: {_json(row)}")
    lines += [f"  note: {note}" for note in result.notes]
    return "\n".join(lines)


def _json(value: dict[str, Any]) -> str:
    # Escaped, so that data cannot steer the terminal.
    return json.dumps(value)
