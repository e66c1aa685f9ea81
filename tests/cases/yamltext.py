"""JSON that YAML reads as the same, whatever characters there are. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: What YAML may not take as it is.
_ESCAPED: Final = re.compile(r"[^\x20-\x7e\n]")


def yaml_text(value: Any) -> str:
    """A value of JSON's kinds as text that is YAML."""
    # YAML knows no pairs of surrogates.
    return _ESCAPED.sub(_escape, json.dumps(value, ensure_ascii=False, indent=1))


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
