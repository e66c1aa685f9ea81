"""Fixtures of all tests, and what a run selects."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import hypothesis
import pytest

from cdc.jvm import SHORT_LIVED_JVM
from tests.support.stack import Stack, open_stack
from tests.support.stages import Stages

# A busy machine makes any example slow now and then; pytest's own timeout bounds a test.
hypothesis.settings.register_profile("cdc", deadline=None, max_examples=50)
hypothesis.settings.register_profile("cdc-full", deadline=None, max_examples=300)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests marked full")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("cdc-full" if config.getoption("--full") else "cdc")
    config.pluginmanager.register(Stages(config.rootpath), "cdc-stages")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    fixtures = {"stack": "stack", "spare_stack": "stack", "own_stack": "stack", "spark": "spark"}
    for item in items:
        for name in getattr(item, "fixturenames", ()):
            if name in fixtures:
                item.add_marker(fixtures[name])
    if config.getoption("--full") or "full" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("full")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One Postgres and one broker for the whole run. Do not kill these: use spare_stack."""
    with open_stack(tmp_path_factory.mktemp("stack")) as servers:
        yield servers


@pytest.fixture
def database(stack: Stack) -> Iterator[dict[str, Any]]:
    """Conninfo of a fresh database, dropped afterwards with its slots."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    conninfo = stack.postgres.create_database(name)
    yield conninfo
    stack.postgres.drop_database(name)


@pytest.fixture
def topic_prefix() -> str:
    """A topic prefix that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}."


@pytest.fixture(scope="session")
def spare_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """See ``spare_stack``."""
    with open_stack(tmp_path_factory.mktemp("spare-stack")) as servers:
        yield servers


@pytest.fixture
def spare_stack(spare_servers: Stack) -> Iterator[Stack]:
    """Another Postgres and broker for the whole run, to be killed and paused.

    Each test takes back what it set there.
    """
    _start_what_is_down(spare_servers)
    yield spare_servers
    _start_what_is_down(spare_servers)


def _start_what_is_down(servers: Stack) -> None:
    for server in (servers.postgres, servers.kafka):
        if not server.running():
            server.start()


@pytest.fixture
def spare_database(spare_stack: Stack) -> Iterator[dict[str, Any]]:
    """As ``database``, on the servers that may be killed."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    conninfo = spare_stack.postgres.create_database(name)
    yield conninfo
    _start_what_is_down(spare_stack)
    spare_stack.postgres.drop_database(name)


@pytest.fixture
def own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stack]]:
    """Starts servers that belong to the test alone, when they cannot be shared."""
    with ExitStack() as cleanup:
        yield lambda: cleanup.enter_context(open_stack(tmp_path_factory.mktemp("own-stack")))


@pytest.fixture
def kill_rounds(request: pytest.FixtureRequest) -> int:
    """How often a fault test kills its victim: 5 times with --full, else once."""
    return 5 if request.config.getoption("--full") else 1


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session for the whole run."""
    # Only here: Spark's Python is slow to import.
    from spark_jobs.session import build_session

    conf = {"spark.driver.extraJavaOptions": " ".join(SHORT_LIVED_JVM)}
    session = build_session("local[2]", "2g", conf)
    yield session
    session.stop()
