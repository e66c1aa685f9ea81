"""Errors of the source while it is being copied, told in our words, and what follows from them.

Only the server's primary message is passed on, and not where it can hold a part of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

import psycopg

from cdc.errors import (
    CdcError,
    EnvironmentProblem,
    ProtocolViolation,
    SourceError,
    SourceRefused,
)
from cdc.log.kafka_errors import is_retryable
from cdc.schema import TableSchema

CONNECTING: Final = "connect"

_CONNECTION_CODES = {
    "57P01": ("server_stopping", "Postgres is stopping"),
    "57P02": ("server_stopping", "Postgres is stopping"),
    "57P03": ("server_starting", "Postgres is not ready"),
}
_LOAD_IS_OVER: Final = frozenset(
    {"table_rewritten", "table_changed", "topic_missing", "topic_differs"}
)
_PASSES: Final = frozenset(
    {"connection_lost", "server_stopping", "server_starting", "lock_not_granted"}
)


class Verdict(Enum):
    """What a worker's error means for the load that it was busy with."""

    RETRY = "the same chunk may be tried again for as long as it takes"
    COUNT = "it may be the chunk's fault: try again, some times"
    FAIL = "no retry mends it: the load is over"
    STOP = "nothing can be copied any more"


def verdict(error: CdcError) -> Verdict:
    """Judge the error of a worker."""
    if error.code == "producer_fenced":
        return Verdict.STOP
    if error.code in _LOAD_IS_OVER or isinstance(error, SourceRefused | ProtocolViolation):
        return Verdict.FAIL
    if error.code in _PASSES or is_retryable(error) or isinstance(error, EnvironmentProblem):
        return Verdict.RETRY
    return Verdict.COUNT


def table_changed(code: str, schema: TableSchema, what: str) -> SourceError:
    """A table is not any more what its load began with; the load has to begin anew."""
    return SourceError(
        code,
        f"the load of the table cannot go on: {what} since it began",
        table=str(schema.id),
        remedy="load the table again",
    )


def interrupted(schema: TableSchema) -> SourceError:
    """The copy of a table without a key ended before its end; the load has to begin anew."""
    return SourceError(
        "load_interrupted",
        "the table has no key, and its copy was interrupted: what its topic has cannot be told "
        "from what would be copied again",
        table=str(schema.id),
        remedy="load the table again",
    )


@contextmanager
def mapped_errors(doing: str, schema: TableSchema | None = None) -> Iterator[None]:
    """Turn psycopg's errors inside the block into ours.

    Args:
        doing: What is attempted ("copy").
        schema: Of the one table concerned, if it is one.
    """
    try:
        yield
    except psycopg.Error as error:
        primary = error.diag.message_primary
        if primary is None:
            raise _connection_error(doing, " ".join(str(error).split())) from None
        raise _server_error(
            error.sqlstate or "", " ".join(primary.split()), doing, schema
        ) from None


def _server_error(state: str, text: str, doing: str, schema: TableSchema | None) -> CdcError:
    table = str(schema.id) if schema is not None else None
    if state in _CONNECTION_CODES:
        code, what = _CONNECTION_CODES[state]
        return SourceError(code, f"{what}: {text}")
    if state[:2] == "08":
        return SourceError("connection_lost", f"the connection to Postgres was lost: {text}")
    if state in ("53300", "53200"):
        return EnvironmentProblem("too_many_connections", text, remedy="raise max_connections")
    if state == "55P03":
        return SourceError(
            "lock_not_granted",
            f"cannot {doing}: something holds it locked",
            table=table,
            remedy="see pg_locks for who holds ACCESS EXCLUSIVE",
        )
    if state == "42501":
        code = "row_security" if "row-level security" in text else "no_permission"
        return SourceRefused(
            code,
            f"cannot {doing}: {text}",
            table=table,
            remedy="the role needs SELECT on the table, and BYPASSRLS where it has policies",
        )
    if schema is not None and state in ("42P01", "3F000"):
        return table_changed("table_rewritten", schema, "it was dropped or renamed")
    if schema is not None and state in ("42703", "42809"):
        return table_changed("table_changed", schema, "its columns were changed")
    if state[:2] == "22":
        # The text of these can quote bytes of a value.
        return SourceRefused(
            "bad_value", f"cannot {doing}: the server cannot print a value ({state})", table=table
        )
    return SourceError("source_error", f"cannot {doing}: {text}", table=table)


def _connection_error(doing: str, text: str) -> CdcError:
    if doing != CONNECTING:
        return SourceError("connection_lost", f"the connection to Postgres was lost: {text}")
    if "too many" in text or "connection slots" in text:
        return EnvironmentProblem("too_many_connections", text, remedy="raise max_connections")
    if "starting up" in text or "not yet accepting" in text or "recovery" in text:
        return SourceError("server_starting", f"Postgres is not ready: {text}")
    if "shutting down" in text:
        return SourceError("server_stopping", f"Postgres is stopping: {text}")
    return EnvironmentProblem(
        "server_unreachable",
        f"cannot connect to Postgres: {text}",
        remedy="check host, port, user and password in cdc.yaml, and that the server runs",
    )
