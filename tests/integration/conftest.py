"""Fixtures of the tests on real servers."""

import pytest


@pytest.fixture(autouse=True)
def quick_frontiers(monkeypatch):
    """Capture inside the test's process moves a quiet source's frontier often: all wait for it."""
    monkeypatch.setattr("connectors.postgres.stream._QUIET_S", 0.1)
