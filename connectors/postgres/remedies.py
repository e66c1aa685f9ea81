"""What mends a source that cannot be captured any further, by the code of its error."""

from __future__ import annotations

from typing import Final

RELOAD_REMEDY: Final = (
    "cdc stop, cdc destroy --source NAME (its slot, topics and derived tables), then cdc start "
    "loads the source anew"
)
_FIRST: Final = {
    "record_too_large": "raise log message limits (max.message.bytes of broker and topic) or keep "
    "such values out of the table; then ",
    "bad_value": "mend the value at the source; then ",
    "column_default": "add columns without a default and fill them by UPDATE; for now ",
    "table_rewritten": "add columns without a default and fill them by UPDATE; for now ",
}


def remedy_of(code: str) -> str:
    """The remedy of a source that stopped with this code."""
    return _FIRST.get(code, "") + RELOAD_REMEDY
