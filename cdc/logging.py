"""Structured logs: one JSON object a line, without secrets.

Processes log to a stream (stderr by default); the daemon collects its children's streams into
``.cdc/logs``. Nobody logs row values; this module masks what looks like a secret all the same.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

from cdc.errors import CdcError
from cdc.redaction import MASK, is_secret_key, redact

_DEEPEST = 6
_MOST_FRAMES = 12
_LONGEST_CHAIN = 4


def redact_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Structlog processor: masks secrets in every field, nested ones included."""
    return {str(key): _masked(str(key), value, 0) for key, value in event.items()}


def _masked(key: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if is_secret_key(key):
        return MASK
    if isinstance(value, str):
        return redact(value)
    if depth < _DEEPEST and isinstance(value, dict):
        return {str(k): _masked(str(k), v, depth + 1) for k, v in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_masked(key, item, depth + 1) for item in value]
    return redact(str(value))


def describe_exception(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Structlog processor: ``exc_info`` as types and places; foreign messages are left out.

    A driver's or Spark's message can quote a row, and ours never do.
    """
    given = event.pop("exc_info", None)
    if not given:
        return event
    if isinstance(given, BaseException):
        error: BaseException | None = given
    elif isinstance(given, tuple):
        error = given[1]
    else:
        error = sys.exc_info()[1]
    chain: list[dict[str, Any]] = []
    while error is not None and len(chain) < _LONGEST_CHAIN:
        link: dict[str, Any] = {
            "type": type(error).__name__,
            "frames": [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
            ],
        }
        if isinstance(error, CdcError):
            link.update(error.to_json())
        chain.append(link)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    event["exception"] = chain
    return event


class _StreamHandler(logging.Handler):
    """Logs of libraries, through the same processors."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = type(record.exc_info[1]).__name__
        level = record.levelname.lower()
        structlog.get_logger("library").log(
            logging.getLevelNamesMapping().get(level.upper(), logging.INFO),
            record.getMessage(),
            **fields,
        )


class _Stderr:
    """Whatever stderr is when a line is written."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


def configure_logging(
    process: str, *, stream: TextIO | None = None, level: int = logging.INFO, human: bool = False
) -> None:
    """Set this process's logs up: once, at its start.

    Args:
        process: Who logs: ``daemon``, ``capture:shop``, ``apply`` …; a field of every line.
        stream: Where to; stderr by default.
        level: The lowest level that is written.
        human: Short coloured lines for a terminal, in place of JSON.
    """
    out = stream if stream is not None else cast(TextIO, _Stderr())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if human
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_process(process),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            describe_exception,
            redact_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(out),
        # Loggers are made at import time; they must follow a later configure_logging.
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_StreamHandler()]
    root.setLevel(max(level, logging.WARNING))


def _add_process(process: str) -> Any:
    def add(
        _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event["process"] = process
        return event

    return add
