"""Why a case fails, in one line."""

from __future__ import annotations


class CaseProblem(Exception):
    """The case fails; the message says by what."""
