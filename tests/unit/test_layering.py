"""Who may import whom, as docs/architecture.md draws it."""

import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"cdc", "connectors", "snapshots", "spark_jobs", "deploy", "tests"}
#: Package to the packages of ours that it may import at all.
ALLOWED = {
    "cdc": set(),
    "connectors": {"cdc"},
    "snapshots": {"cdc"},
    "spark_jobs": {"cdc"},
    "deploy": {"cdc"},
}
#: Only these may import everything, and only inside functions.
COMPOSITION_ROOTS = ("cdc/cli/", "cdc/daemon/")
#: The demo is a program on top of the whole platform.
PROGRAMS = ("deploy/demo/",)


def modules():
    return [
        path.relative_to(ROOT)
        for package in ALLOWED
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def imported(node):
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return {node.module.split(".")[0]}
    return set()


def all_imports(tree):
    """(package, inside a function) of every import in a module; typing-only ones are left out."""
    found: set[tuple[str, bool]] = set()

    def visit(node, inside):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        found.update((name, inside) for name in imported(node))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, False)
    return found


def parsed(module):
    # Before 3.11.9 a collection in the middle makes the parser think that it has lost count
    # (gh-106905).
    gc.disable()
    try:
        return ast.parse((ROOT / module).read_text())
    finally:
        gc.enable()


@pytest.mark.parametrize("module", modules(), ids=str)
def test_modules_import_only_what_their_layer_may(module):
    own = module.parts[0]
    root = str(module).startswith(COMPOSITION_ROOTS)
    for name, inside in all_imports(parsed(module)):
        if name not in OURS or name == own or name in ALLOWED[own]:
            continue
        if str(module).startswith(PROGRAMS):
            continue
        assert root and inside, f"{module} imports {name}"


@pytest.mark.parametrize("module", ["cdc.cli.main", "cdc.query.run", "cdc.status"])
def test_light_commands_never_load_spark(module):
    code = (
        f"import sys, {module}; "
        "print([m for m in ('pyspark', 'delta', 'spark_jobs', 'pandas') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert out.stdout.strip() == "[]"


def test_files_stay_small():
    long = {
        str(path): lines
        for path in modules()
        if (lines := len((ROOT / path).read_text().splitlines())) > 420
    }
    assert not long
