"""The mark for a column whose value Postgres did not send (an unchanged TOAST value).

It is neither NULL nor a value: whoever holds the row keeps its own value of the column.
"""

from __future__ import annotations

import enum


class Unsent(enum.Enum):
    """One member, so that ``value is UNSENT`` narrows types."""

    UNSENT = "unsent"


UNSENT = Unsent.UNSENT
