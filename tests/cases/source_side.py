"""The application of a case: its database, and the sessions that write to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.position import parse_lsn
from tests.cases.case import (
    PUBLICATION,
    Autocommit,
    Case,
    Concurrent,
    CopyIn,
    Item,
    Statement,
    Transaction,
    is_prepare,
)
from tests.cases.problem import CaseProblem
from tests.support.stack import Postgres

#: What a publication of all operations and all tables makes of an UPDATE without an identity.
NO_IDENTITY: Final = "55000"
_STATEMENT_SECONDS: Final = 60
# As the format says that values print.
_CANONICAL: Final = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "public",
}


class SlotState(Enum):
    """What becomes of a replication slot."""

    BEING_MADE = "being made"
    IDLE = "idle"
    READ = "read"


class SourceSide:
    """A case's database, with the two sessions that its statements run in.

    Args:
        case: The case.
        conninfo: Of its database.
    """

    def __init__(self, case: Case, conninfo: Mapping[str, Any]) -> None:
        self._case = case
        self.conninfo = dict(conninfo)
        #: Statements succeeded that fail with a wider publication.
        self.went_further = False
        # A database without an encoding takes bytes as they are, and the statements are ASCII.
        encoding = "SQL_ASCII" if case.encoding == "SQL_ASCII" else "UTF8"
        self._main = _session(conninfo, encoding)
        self._second = _session(conninfo, encoding)
        # Beside the case's own sessions, whose settings and transactions are its own.
        self._watching = _session(conninfo, "UTF8")

    def close(self) -> None:
        """Let go of the sessions."""
        for session in (self._main, self._second, self._watching):
            session.close()

    # --- before capture ---

    def set_up(self) -> None:
        """Extensions, setup, publication.

        Raises:
            CaseProblem: A statement fails.
        """
        for name in self._case.extensions:
            self._main.execute(sql.SQL("create extension {}").format(sql.Identifier(name)))
        self._run_all(self._main, self._case.setup)
        self._run(self._main, f"create publication {PUBLICATION} {self._case.publication}")

    # --- around the start ---

    def run_second(self, statements: Iterable[Statement]) -> None:
        """Run statements in the second session."""
        self._run_all(self._second, statements)

    # --- while capture runs ---

    def run_item(self, item: Item) -> None:
        """Run one item of the stream.

        Raises:
            CaseProblem: A statement fails that must not, or the other way round.
        """
        match item:
            case Autocommit(statements):
                self._run_all(self._main, statements)
            case Concurrent():
                self._run_concurrent(item)
            case Transaction():
                self._run_transaction(item)

    def flushed(self) -> int:
        """Where the WAL of all that is committed ends.

        Not the insert position, which at a page's border lies beyond the newest record.
        """
        row = self._watching.execute("select pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def slot(self, name: str) -> SlotState | None:
        """What a slot is at; None: there is none."""
        row = self._watching.execute(
            "select confirmed_flush_lsn is not null, active from pg_replication_slots"
            " where slot_name = %s",
            (name,),
        ).fetchone()
        if row is None:
            return None
        made, active = row
        if not made:
            return SlotState.BEING_MADE
        return SlotState.READ if active else SlotState.IDLE

    def _run_concurrent(self, item: Concurrent) -> None:
        for _ in range(item.repeat):
            rest = {"a": (self._main, iter(item.a)), "b": (self._second, iter(item.b))}
            for who in item.order:
                session, statements = rest[who]
                self._run(session, next(statements))

    def _run_transaction(self, item: Transaction) -> None:
        session, statements = self._main, list(item.statements)
        session.execute("begin")
        last = statements.pop() if item.fails is not None else None
        self._run_all(session, statements)
        if last is not None:
            code = _failure(session, last)
            if code not in (item.fails, None) or (code is None and item.fails != NO_IDENTITY):
                raise CaseProblem(f"the source: expected {item.fails}, got {code}: {_said(last)}")
            if code is not None:
                session.execute("rollback")
                return
            self.went_further = True
        if not (statements and is_prepare(statements[-1])):
            session.execute("rollback" if item.rollback else "commit")

    def _run_all(self, session: psycopg.Connection[Any], statements: Iterable[Statement]) -> None:
        for statement in statements:
            self._run(session, statement)

    def _run(self, session: psycopg.Connection[Any], statement: Statement) -> None:
        try:
            _execute(session, statement)
        except psycopg.Error as error:
            said = error.diag.message_primary or str(error)
            raise CaseProblem(
                f"the source: {error.sqlstate} {said}, in: {_said(statement)}"
            ) from None


def create_database(postgres: Postgres, case: Case, name: str) -> dict[str, Any]:
    """A case's database, in the encoding that it wants; its conninfo."""
    options = "template template0"
    if case.encoding is not None:
        options += f" encoding '{case.encoding}' lc_collate 'C' lc_ctype 'C'"
    return postgres.create_database(name, options)


def drop_database(postgres: Postgres, name: str) -> None:
    """Drop a case's database, also when it ended in the middle of a two-phase commit."""
    with psycopg.connect(**postgres.conninfo(name), autocommit=True) as connection:
        prepared = connection.execute(
            "select gid from pg_prepared_xacts where database = current_database()"
        ).fetchall()
        for (gid,) in prepared:
            connection.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
    postgres.drop_database(name)


@contextmanager
def canonical_session(conninfo: Mapping[str, Any]) -> Iterator[psycopg.Connection[Any]]:
    """A session in which the server prints values as the format says; not in autocommit."""
    settings = " ".join(
        f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in _CANONICAL.items()
    )
    with psycopg.connect(
        **conninfo, client_encoding="UTF8", options=settings, prepare_threshold=None
    ) as connection:
        yield connection


def _session(conninfo: Mapping[str, Any], encoding: str) -> psycopg.Connection[Any]:
    return psycopg.connect(
        **conninfo,
        autocommit=True,
        client_encoding=encoding,
        prepare_threshold=None,
        # An application that we block must not hang the whole run.
        options=f"-c statement_timeout={_STATEMENT_SECONDS}s",
    )


def _execute(session: psycopg.Connection[Any], statement: Statement) -> None:
    if isinstance(statement, CopyIn):
        with session.cursor() as cursor, cursor.copy(statement.sql.encode()) as copy:
            copy.write(statement.data.encode())
    else:
        session.execute(statement.encode())


def _failure(session: psycopg.Connection[Any], statement: Statement) -> str | None:
    try:
        _execute(session, statement)
    except psycopg.Error as error:
        return error.sqlstate or str(error)
    return None


def _said(statement: Statement) -> str:
    text = statement.sql if isinstance(statement, CopyIn) else statement
    return text if len(text) <= 120 else text[:117] + "…"
