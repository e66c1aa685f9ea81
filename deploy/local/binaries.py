"""Where a Postgres of version 14 or newer is on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cdc.errors import CdcError, EnvironmentProblem

OLDEST = 14
#: Major versions that there are packages of.
PACKAGED = (14, 15, 16, 17, 18)
_DEBIAN = Path("/usr/lib/postgresql")
_NEEDED = ("initdb", "postgres")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with initdb and postgres, and their major version."""

    folder: Path
    version: int


def find_binaries(choice: str | None = None) -> Binaries:
    """Binaries on the machine, else those of a package, fetched once into the cache.

    Args:
        choice: ``machine`` or ``package`` to allow only that, a major version for its package,
            a folder to use it, None for the value of CDC_POSTGRES, or either when that is unset.

    Raises:
        EnvironmentProblem: ``postgres_missing``, or why the package cannot be had.
    """
    choice = choice or os.environ.get("CDC_POSTGRES") or "any"
    version = int(choice) if choice.isdecimal() else None
    if choice not in ("any", "machine", "package") and version not in PACKAGED:
        found = inspect(Path(choice))
        if found is None:
            raise EnvironmentProblem(
                "postgres_missing",
                f"{choice} holds no initdb and postgres of version {OLDEST} or newer",
                remedy="set CDC_POSTGRES to a folder of binaries, machine, package or one of "
                + ", ".join(map(str, PACKAGED)),
            )
        return found
    if choice != "package" and version is None:
        found = on_machine()
        if found is not None:
            return found
        if choice == "machine":
            raise EnvironmentProblem(
                "postgres_missing",
                f"no Postgres of version {OLDEST} or newer on this machine",
                remedy="install it (Debian, Ubuntu: apt-get install postgresql), "
                "or unset CDC_POSTGRES to use a package",
            )
    # Only here: nothing else needs the jar machinery.
    from deploy.local.package import DEFAULT_VERSION, packaged_binaries

    folder = packaged_binaries(version or DEFAULT_VERSION)
    found = inspect(folder)
    if found is None:
        raise EnvironmentProblem(
            "postgres_missing",
            f"the packaged Postgres in {folder} does not run on this machine",
            remedy="install Postgres (Debian, Ubuntu: apt-get install postgresql)",
        )
    return found


def on_machine() -> Binaries | None:
    """The binaries that pg_config names, else the newest of Debian's folders."""
    folders: list[Path] = []
    try:
        answer = subprocess.run(
            ["pg_config", "--bindir"], capture_output=True, text=True, check=True, timeout=10
        )
        folders.append(Path(answer.stdout.strip()))
    except (OSError, subprocess.SubprocessError):
        pass  # pg_config is often missing although the server is there
    if _DEBIAN.is_dir():
        versions = sorted(
            (entry for entry in _DEBIAN.iterdir() if entry.name.isdigit()),
            key=lambda entry: int(entry.name),
            reverse=True,
        )
        folders.extend(entry / "bin" for entry in versions)
    for folder in folders:
        found = inspect(folder)
        if found is not None:
            return found
    return None


def inspect(folder: Path) -> Binaries | None:
    """The binaries in ``folder`` if it holds a whole server that runs and is new enough."""
    if not all(os.access(folder / name, os.X_OK) for name in _NEEDED):
        return None
    try:
        answer = subprocess.run(
            [str(folder / "postgres"), "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(\d+)", answer.stdout)
    if match is None or int(match.group(1)) < OLDEST:
        return None
    return Binaries(folder, int(match.group(1)))


def main() -> int:
    """Find or fetch the binaries and say where they are; the exit code."""
    try:
        found = find_binaries()
    except CdcError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"Postgres {found.version} in {found.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
