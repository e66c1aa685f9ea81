"""Fixtures of all tests of this folder."""

from tests.support.quick_frontiers import quick_frontiers  # noqa: F401 - used by its name
