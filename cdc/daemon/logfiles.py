"""Where the output of the daemon's children goes: ``.cdc/logs/<name>.jsonl``, rotated.

Children log JSON lines that are free of secrets and row values (``cdc.logging``). What else
they print comes from libraries and the JVM, whose messages can quote rows: of those lines only
what cannot is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from cdc.logging import redact_event

_LONGEST_LINE = 64 * 1024
_FRAME = re.compile(r'\s*(?:at [\w.$/<>-]+\(.*\)|File ".*", line \d+, in .*|\.\.\. \d+ more)')
_LOG4J = re.compile(r"(\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?:WARN|ERROR|INFO|FATAL) [\w.$]+): ?(.*)")
_ERROR = re.compile(
    r"\b((?:[A-Za-z_$][\w$]*\.)*(?:[A-Za-z_$][\w$]*)?"
    r"(?:Error|Exception|Warning|Violation|Interrupt|Exit))\b"
)
_ERROR_LINE = re.compile(r"\s*(?:Caused by: |Exception in thread \"[^\"]*\" )?" + _ERROR.pattern)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def safe_line(line: str) -> str | None:
    """What of a line that is not JSON may be kept; None when nothing may."""
    if _FRAME.fullmatch(line) or line.startswith("Traceback "):
        return line
    if match := _LOG4J.fullmatch(line):
        message = match[2]
        # After an exception's name follows its message.
        if error := _ERROR.search(message):
            message = message[: error.end()]
        return f"{match[1]}: {_QUOTED.sub('…', message)}"
    if match := _ERROR_LINE.match(line):
        return match[0]
    return None


class LogFile:
    """One child's log: ``name.jsonl``, and up to ``keep`` older ones ``name.jsonl.1`` ….

    Args:
        folder: ``.cdc/logs``.
        name: The child's name.
        largest: Bytes after which a file is put aside.
        keep: How many older files are kept.
        keep_raw: Keep lines that are not JSON whole (``--dev``).
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        largest: int = 16 << 20,
        keep: int = 4,
        keep_raw: bool = False,
    ) -> None:
        self.path = folder / f"{name.replace(':', '.')}.jsonl"
        self._name = name
        self._largest = largest
        self._keep = keep
        self._keep_raw = keep_raw
        self._partial = b""
        self._stream = self._open()
        self._size = self.path.stat().st_size

    def feed(self, data: bytes) -> None:
        """Bytes of the child's output, cut anywhere."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._partial) > _LONGEST_LINE:
            self._line(self._partial)
            self._partial = b""

    def end(self) -> None:
        """The child's output has ended; the file stays open for the next one."""
        if self._partial:
            self._line(self._partial)
            self._partial = b""

    def close(self) -> None:
        """Close the file."""
        self.end()
        self._stream.close()

    def _line(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode(errors="replace").rstrip("\r")
        if not text.strip():
            return
        record = _json_object(text)
        if record is None:
            kept = text if self._keep_raw else safe_line(text)
            if kept is None:
                return
            record = {
                "event": kept,
                "process": self._name,
                "raw": True,
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
        # Last line of defence against a child that logs past cdc.logging.
        safe = redact_event(None, "", record)
        self._write(json.dumps(safe, ensure_ascii=False).encode(errors="replace") + b"\n")

    def _write(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._largest:
            self._rotate()
        self._stream.write(data)
        self._size += len(data)

    def _rotate(self) -> None:
        self._stream.close()
        for number in range(self._keep, 0, -1):
            older = (
                self.path if number == 1 else self.path.with_name(f"{self.path.name}.{number - 1}")
            )
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, self.path.with_name(f"{self.path.name}.{number}"))
        self._stream = self._open()
        self._size = 0

    def _open(self) -> _Stream:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return _Stream(handle)


class _Stream:
    """An unbuffered file that a full disk does not turn into a dead daemon."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._handle, data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._handle)


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
