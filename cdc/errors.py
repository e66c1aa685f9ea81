"""Every error that a user can meet, and what to do about it.

    CdcError                    code, message, table, position, remedy
    ├── ConfigError             2  cdc.yaml or a command line is wrong
    ├── EnvironmentProblem      3  the machine, a server or a permission is not as needed
    ├── SourceError             1  Postgres: slot, publication, table or stream
    │   ├── SourceRefused       2  a start check failed; nothing was created
    │   ├── HistoryGap          1  history that we need may be gone (guarantee G3)
    │   ├── SourceStopped       1  met while running: capture stops before this transaction
    │   └── ProtocolViolation   1  bytes from the server that are not pgoutput
    ├── LogError                1  Kafka: topic, record or transaction
    ├── LakeError               1  Delta: replica, progress or lock
    └── QueryError              1  a query that cannot be answered

The number is the exit code of a command that ends with the error. Foreign exceptions are
mapped to these at the edge where they arise. No message holds a secret or a row's value.
"""

from __future__ import annotations

from typing import Any, ClassVar


class CdcError(Exception):
    """What happened, to which table, at which position, and what mends it.

    Args:
        code: Stable word in snake_case, for programs (``slot_missing``).
        message: One sentence for people, without secrets or row values.
        table: ``source.schema.table`` or ``schema.table`` if one table is concerned.
        position: A position or LSN in text form, if one is concerned.
        remedy: The command or SQL that mends it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        code: str,
        message: str,
        *,
        table: str | None = None,
        position: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.table = table
        self.position = position
        self.remedy = remedy

    def __str__(self) -> str:
        where = " ".join(
            part
            for part in (
                f"table {self.table}" if self.table else "",
                f"at {self.position}" if self.position else "",
            )
            if part
        )
        text = f"{self.message} ({where})" if where else self.message
        return f"{text}\n  remedy: {self.remedy}" if self.remedy else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default pickling of exceptions.
        return (
            _rebuild,
            (type(self), self.code, self.message, self.table, self.position, self.remedy),
        )

    def to_json(self) -> dict[str, str | None]:
        """The ``error`` object of a command's ``--json`` output."""
        return {
            "code": self.code,
            "message": self.message,
            "table": self.table,
            "position": self.position,
            "remedy": self.remedy,
        }


def _rebuild(
    kind: type[CdcError],
    code: str,
    message: str,
    table: str | None,
    position: str | None,
    remedy: str | None,
) -> CdcError:
    return kind(code, message, table=table, position=position, remedy=remedy)


class ConfigError(CdcError):
    """cdc.yaml, or the words of a command, are wrong."""

    exit_code = 2


class EnvironmentProblem(CdcError):
    """The machine, a server or a permission is not as needed."""

    exit_code = 3


class SourceError(CdcError):
    """Postgres cannot be captured as asked."""


class SourceRefused(SourceError):
    """A start check failed; nothing was created."""

    exit_code = 2


class HistoryGap(SourceError):
    """History that the log needs may be gone; an operator has to decide."""


class SourceStopped(SourceError):
    """Met while running: capture stops before the transaction at ``position``."""


class ProtocolViolation(SourceError):
    """The server sent bytes that are not the replication protocol we speak."""


class LogError(CdcError):
    """A topic, record or transaction of the Kafka log is not as it must be."""


class LakeError(CdcError):
    """A Delta table, its progress or the lake's lock is not as it must be."""


class QueryError(CdcError):
    """A query cannot be answered, or not fully; there are no partial answers."""


def and_then(remedy: str, more: str) -> str:
    """A remedy and what goes on from there ("then …", "or …"); SQL brings its semicolon."""
    return f"{remedy.removesuffix(';')}; {more}"
