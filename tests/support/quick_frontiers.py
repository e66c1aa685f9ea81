"""A fixture of tests that run capture inside of their own process."""

import pytest


@pytest.fixture(autouse=True)
def quick_frontiers(monkeypatch):
    """A quiet source's frontier moves often: all wait for it."""
    monkeypatch.setattr("connectors.postgres.stream._QUIET_S", 0.1)
