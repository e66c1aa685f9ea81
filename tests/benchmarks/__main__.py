"""``python -m tests.benchmarks NAME [--rows N] [--json]``: measure, as ratios to a baseline.

Each module here has ``run(rows) -> {"figures": …, "ratios": …}``: contestants are run by turns
in the same run, figures are medians. Absolute times are only good on one machine.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import signal
import sys

from rich.console import Console
from rich.table import Table

import tests.benchmarks


def names():
    found = pkgutil.iter_modules(tests.benchmarks.__path__)
    return sorted(
        module.name for module in found if not (module.ispkg or module.name.startswith("_"))
    )


def show(result):
    console = Console()
    for part in ("figures", "ratios"):
        table = Table(title=part, show_header=False)
        for name, value in result[part].items():
            table.add_row(name, json.dumps(value))
        console.print(table)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("name", choices=names())
    parser.add_argument("--rows", type=int, help="size; each benchmark has its own default")
    parser.add_argument("--workers", type=int, help="for benchmarks that have workers")
    parser.add_argument("--peer", help="for snapshot: folder of a peer's measuring harness")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    run = importlib.import_module(f"tests.benchmarks.{args.name}").run
    parameters = inspect.signature(run).parameters
    rows = args.rows or parameters["rows"].default
    options = {}
    for option in ("workers", "peer"):
        if (value := getattr(args, option)) is not None:
            if option not in parameters:
                parser.error(f"{args.name} does not take --{option}")
            options[option] = value
    # Servers that are not our children are stopped also when we are told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = run(rows, **options)
    if args.json:
        print(json.dumps({"benchmark": args.name, "rows": rows, **result}))
    else:
        show(result)


if __name__ == "__main__":
    main()
