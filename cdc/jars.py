"""Where the pinned jars are: ``broker``, ``spark`` and the packaged Postgres.

A set is a folder of deploy/jars with ivy.xml (what to resolve) and jars.sha256 (every jar that
has to come out of it, in the form of sha256sum). The jars are in a folder of the user's cache
that is named after the pins, so another version of this project never finds the wrong ones.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cdc.errors import EnvironmentProblem

_SETS = Path(__file__).parents[1] / "deploy" / "jars"


def cache_root() -> Path:
    """``${XDG_CACHE_HOME:-~/.cache}/cdc``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cdc"


def pins(name: str) -> dict[str, str]:
    """File name → SHA-256 (hexadecimal) of every jar of a set."""
    lines = (_SETS / name / "jars.sha256").read_text().splitlines()
    return {jar: digest for digest, jar in (line.split(maxsplit=1) for line in lines)}


def cached_folder(name: str) -> Path:
    """Where the jars of a set belong, whether they are there or not."""
    digest = hashlib.sha256()
    for file in ("ivy.xml", "jars.sha256"):
        digest.update((_SETS / name / file).read_bytes())
    return cache_root() / "jars" / f"{name}-{digest.hexdigest()[:16]}"


def jar_folder(name: str) -> Path:
    """The folder that holds exactly the jars of a set, checked when they were fetched.

    Raises:
        EnvironmentProblem: ``jars_missing``.
    """
    folder = cached_folder(name)
    if not folder.is_dir():
        raise EnvironmentProblem(
            "jars_missing", f"the {name} jars are not in {folder}", remedy="./deploy/setup.sh"
        )
    return folder


def jar_paths(name: str) -> list[Path]:
    """Every jar of a set, sorted by name.

    Raises:
        EnvironmentProblem: ``jars_missing``.
    """
    folder = jar_folder(name)
    return [folder / jar for jar in sorted(pins(name))]
