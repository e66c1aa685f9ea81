"""Keeps secrets out of logs and messages: values that were resolved, and telling patterns."""

from __future__ import annotations

import re

MASK = "***"
_PATTERNS = (
    # URL with user and password: keep the user, hide the password.
    (re.compile(r"(\w+://[^\s:/@]*):[^\s@/]+@"), rf"\1:{MASK}@"),
    # key=value and key: value, as in connection strings, JAAS and HTTP headers.
    (
        re.compile(
            r"(?i)\b(password|passwd|pwd|secret|token|passfile|sslpassword)"
            r"(\"?'?\s*[=:]\s*)('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|[^\s,;&)}\]]+)"
        ),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]+"), rf"\1 {MASK}"),
)
_SECRET_KEYS = re.compile(r"(?i)(password|passwd|secret|token$|authorization|jaas)")
# Too short to be told from ordinary text; masking them would garble every line.
_SHORTEST_REMEMBERED = 4

_remembered: set[str] = set()


def remember_secret(value: str) -> None:
    """From now on this process masks ``value`` wherever it logs text."""
    if len(value) >= _SHORTEST_REMEMBERED:
        _remembered.add(value)


def redact(text: str) -> str:
    """``text`` without remembered secrets and without what looks like a password."""
    for value in sorted(_remembered, key=len, reverse=True):
        if value in text:
            text = text.replace(value, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def is_secret_key(key: str) -> bool:
    """Whether a field of this name holds a secret, so that its value is never written."""
    return _SECRET_KEYS.search(key) is not None
