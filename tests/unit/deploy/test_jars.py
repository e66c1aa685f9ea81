import hashlib
import re
from pathlib import Path

import pytest

from cdc import jars
from cdc.errors import EnvironmentProblem
from deploy.jars import fetch as fetch_module
from deploy.jars.fetch import fetch, main, verify
from deploy.local.binaries import PACKAGED

SETS = (
    "broker",
    "spark",
    *(f"postgres-{v}-{machine}" for v in PACKAGED for machine in ("amd64", "arm64v8")),
)


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A set of two jars, a cache, and a resolver that serves what ``served`` says."""
    sets = tmp_path / "sets"
    (sets / "demo").mkdir(parents=True)
    contents = {"a-1.jar": b"first", "b-2.jar": b"second"}
    (sets / "demo" / "ivy.xml").write_text("<ivy-module/>")
    (sets / "demo" / "jars.sha256").write_text(
        "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in contents.items())
    )
    monkeypatch.setattr(jars, "_SETS", sets)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    served = dict(contents)

    def resolve(_name, folder):
        for name, data in served.items():
            (folder / name).write_bytes(data)

    monkeypatch.setattr(fetch_module, "_resolve", resolve)
    return served


@pytest.mark.parametrize("name", SETS)
def test_every_jar_is_pinned_by_checksum(name):
    pinned = jars.pins(name)
    assert pinned
    for jar, digest in pinned.items():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+\.jar", jar)
        assert re.fullmatch(r"[0-9a-f]{64}", digest)


def test_no_jar_of_the_spark_set_is_one_that_pyspark_carries():
    import importlib.util

    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    strip = lambda jar: re.sub(r"-\d.*$", "", jar)  # noqa: E731
    carried = {strip(path.name) for path in (Path(spec.origin).parent / "jars").glob("*.jar")}
    assert carried
    assert not carried & {strip(jar) for jar in jars.pins("spark")}


def test_the_broker_is_none_that_loses_transaction_markers():
    (version,) = (
        match[1]
        for jar in jars.pins("broker")
        if (match := re.fullmatch(r"kafka_2\.13-([\d.]+)\.jar", jar))
    )
    # KAFKA-20734, see broker/ivy.xml.
    assert version not in ("4.3.0", "4.3.1")


def test_no_file_of_the_sets_names_a_host():
    folder = Path(fetch_module.__file__).parent
    for file in [*folder.rglob("*.xml"), *folder.rglob("*.sha256")]:
        assert "://" not in file.read_text()


def test_fetched_jars_are_there_once_checked(made_up):
    with pytest.raises(EnvironmentProblem) as caught:
        jars.jar_folder("demo")
    assert caught.value.code == "jars_missing"
    folder = fetch("demo")
    assert jars.jar_folder("demo") == folder
    assert jars.jar_paths("demo") == [folder / "a-1.jar", folder / "b-2.jar"]


def test_a_known_set_is_not_resolved_again(made_up, monkeypatch):
    fetch("demo")
    monkeypatch.setattr(fetch_module, "_resolve", lambda *_: pytest.fail("resolved again"))
    fetch("demo")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a-1.jar": b"tampered"}, "a-1.jar has another checksum"),
        ({"a-1.jar": None}, "a-1.jar missing"),
        ({"c-3.jar": b"third"}, "c-3.jar not pinned"),
    ],
)
def test_other_jars_than_the_pinned_ones_are_never_seen(made_up, change, said, capsys):
    for name, data in change.items():
        made_up.pop(name, None)
        if data is not None:
            made_up[name] = data
    with pytest.raises(EnvironmentProblem) as caught:
        fetch("demo")
    assert caught.value.code == "jars_differ"
    assert said in caught.value.message
    assert not jars.cached_folder("demo").exists()
    assert list(jars.cached_folder("demo").parent.glob(".demo-*")) == []
    assert main(["demo"]) == 3
    assert said in capsys.readouterr().err


def test_changed_pins_mean_another_folder(made_up, tmp_path):
    before = jars.cached_folder("demo")
    pins = tmp_path / "sets" / "demo" / "jars.sha256"
    pins.write_text(pins.read_text().replace("a-1.jar", "a-2.jar"))
    assert jars.cached_folder("demo") != before


@pytest.mark.parametrize("name", ["broker", "spark"])
def test_the_jars_in_the_cache_are_the_pinned_ones(name):
    verify(name, jars.jar_folder(name))
