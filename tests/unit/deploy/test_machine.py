import socket
from pathlib import Path

import pytest

from cdc.errors import EnvironmentProblem
from deploy.local import binaries as binaries_module
from deploy.local.binaries import find_binaries, inspect
from deploy.local.java import find_java
from deploy.local.ports import choose_port, is_free


def _script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _fake_postgres(folder, version):
    _script(folder / "postgres", f'echo "postgres (PostgreSQL) {version}"')
    _script(folder / "initdb", "exit 0")


def _fake_java(home, version):
    _script(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")


@pytest.mark.parametrize(("said", "major"), [("14.1", 14), ("18beta1", 18), ("17.11 (Debian)", 17)])
def test_a_server_of_version_14_or_newer_is_taken(tmp_path, said, major):
    _fake_postgres(tmp_path, said)
    found = inspect(tmp_path)
    assert found is not None
    assert (found.folder, found.version) == (tmp_path, major)


def test_too_old_or_broken_or_half_servers_are_not_taken(tmp_path):
    _fake_postgres(tmp_path / "old", "13.22")
    assert inspect(tmp_path / "old") is None
    _script(tmp_path / "broken" / "postgres", "exit 1")
    _script(tmp_path / "broken" / "initdb", "exit 0")
    assert inspect(tmp_path / "broken") is None
    _script(tmp_path / "half" / "postgres", 'echo "postgres (PostgreSQL) 17.0"')
    assert inspect(tmp_path / "half") is None


def test_debians_newest_server_is_taken_when_pg_config_is_missing(tmp_path, monkeypatch):
    for version in ("9", "14", "16"):
        _fake_postgres(tmp_path / "debian" / version / "bin", f"{version}.1")
    monkeypatch.setattr(binaries_module, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CDC_POSTGRES", raising=False)
    # sh of the fake scripts is named absolutely, so an empty PATH is enough for them.
    assert find_binaries().folder == tmp_path / "debian" / "16" / "bin"


def test_a_forced_choice_is_kept_or_refused(tmp_path, monkeypatch):
    _fake_postgres(tmp_path / "mine", "15.2")
    monkeypatch.setenv("CDC_POSTGRES", str(tmp_path / "mine"))
    assert find_binaries().version == 15
    monkeypatch.setenv("CDC_POSTGRES", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentProblem) as caught:
        find_binaries()
    assert caught.value.code == "postgres_missing"
    monkeypatch.setattr(binaries_module, "_DEBIAN", tmp_path / "debian")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CDC_POSTGRES", "machine")
    with pytest.raises(EnvironmentProblem) as caught:
        find_binaries()
    assert "apt-get install postgresql" in (caught.value.remedy or "")


def test_java_of_java_home_wins_over_path(tmp_path, monkeypatch):
    _fake_java(tmp_path / "home", "21.0.1")
    _fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("PATH", f"{tmp_path}/path/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == tmp_path / "home" / "bin" / "java"
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == tmp_path / "path" / "bin" / "java"


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_an_old_java_is_refused_with_what_to_install(tmp_path, monkeypatch, version):
    _fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentProblem) as caught:
        find_java()
    assert caught.value.code == "java_too_old"
    assert caught.value.exit_code == 3
    assert "openjdk-17-jre-headless" in (caught.value.remedy or "")


def test_no_java_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem) as caught:
        find_java()
    assert caught.value.code == "java_missing"


def test_ports_are_free_and_outside_the_ephemeral_range():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = choose_port()
    assert port < first
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert not is_free(port)
    assert is_free(port)
