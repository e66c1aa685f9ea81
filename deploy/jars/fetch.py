"""Bring sets of jars into the cache: ``python -m deploy.jars.fetch broker spark``.

They are resolved by the Ivy that pyspark carries, so nothing but Java and pyspark is needed,
and every file is compared with its pinned checksum before anyone can see it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cdc.errors import CdcError, EnvironmentProblem
from deploy.jars import cache_root, cached_folder, pins
from deploy.local.java import find_java

_SETS = Path(__file__).parent
_TIMEOUT_SECONDS = 900


def fetch(name: str) -> Path:
    """The folder of a set; resolved and checked first if it is not there yet.

    Safe when several processes do it at once.

    Raises:
        EnvironmentProblem: ``jars_unavailable`` (nothing could be downloaded),
            ``jars_differ`` (a file is not the pinned one), ``java_missing``, ….
    """
    folder = cached_folder(name)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as work:
            new = Path(work) / "jars"
            new.mkdir()
            _resolve(name, new)
            verify(name, new)
            # World-readable like any installed jar: mkdtemp's own mode does not matter here.
            new.chmod(0o755)
            new.rename(folder)
    return folder


def verify(name: str, folder: Path) -> None:
    """Check that ``folder`` holds exactly the pinned jars.

    Raises:
        EnvironmentProblem: ``jars_differ``.
    """
    expected = pins(name)
    found = {path.name for path in folder.iterdir()}
    wrong = [f"{jar} missing" for jar in sorted(expected.keys() - found)]
    wrong += [f"{jar} not pinned" for jar in sorted(found - expected.keys())]
    for jar in sorted(expected.keys() & found):
        with (folder / jar).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected[jar]:
                wrong.append(f"{jar} has another checksum")
    if wrong:
        raise EnvironmentProblem(
            "jars_differ",
            f"the {name} jars are not the pinned ones: {', '.join(wrong)}",
            remedy=f"remove {cache_root() / 'ivy'} and try again; "
            "if that does not help, do not use what your repository serves",
        )


def _resolve(name: str, folder: Path) -> None:
    command = [
        str(find_java()),
        f"-Dcdc.ivy.cache={cache_root() / 'ivy'}",
        # Certificates of the machine, where its Java was not told about them.
        *_trust_store(),
        "-jar",
        str(_ivy_jar()),
        "-settings",
        str(_SETS / "settings.xml"),
        "-ivy",
        str(_SETS / name / "ivy.xml"),
        "-retrieve",
        f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
        "-types",
        "jar",
        "bundle",
    ]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(name, f"no end within {_TIMEOUT_SECONDS} s") from error
    if answer.returncode != 0 or not any(folder.iterdir()):
        words = ("UNRESOLVED", "ERROR", "FAILED", "xception", "not found")
        lines = (answer.stdout + answer.stderr).splitlines()
        said = [line.strip() for line in lines if any(word in line for word in words)]
        raise _unavailable(name, " | ".join(said[:5]) or "no message")


def _unavailable(name: str, reason: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        "jars_unavailable",
        f"the {name} jars could not be downloaded: {reason}",
        remedy="check the network; a proxy is given to Java by JAVA_TOOL_OPTIONS",
    )


def _ivy_jar() -> Path:
    # Found without importing pyspark, which takes a second.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "pyspark_missing", "pyspark is not installed", remedy="./deploy/setup.sh"
        )
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise EnvironmentProblem(
            "pyspark_missing", "pyspark carries no Ivy", remedy="./deploy/setup.sh"
        )
    return found[-1]


def _trust_store() -> list[str]:
    store = Path("/etc/ssl/certs/java/cacerts")
    return [f"-Djavax.net.ssl.trustStore={store}"] if os.access(store, os.R_OK) else []


def main(names: list[str]) -> int:
    """Fetch each named set; the exit code."""
    for name in names:
        known = cached_folder(name).is_dir()
        if not known:
            print(f"fetching the {name} jars", flush=True)
        try:
            fetch(name)
        except CdcError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
