"""Random cases, as files of tests.cases: what Hypothesis draws, and what Postgres made of it.

A case is drawn piece by piece from its seed, and each statement is tried in a database of its
own, which also says what the rows are in the end. So the file holds statements that succeed
only, needs no generator to be run again, and can be made smaller by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.cases.case import cell, line
from tests.cases.printing import final_rows
from tests.cases.yamltext import yaml_text
from tests.support.random_changes import (
    RELEASE,
    SAVEPOINT,
    UNDO,
    Drawn,
    Key,
    Step,
    first_rows,
    transactions,
    upkeep,
)
from tests.support.random_tables import Table, tables
from tests.support.random_types import NEEDS, SETUP
from tests.support.stack import Postgres

T = TypeVar("T")
_MOST_ROWS: Final = 300
_KEYS_KNOWN: Final = 12
_TRIED: Final = "cdc_tried"


def draw_one(strategy: st.SearchStrategy[T], number: int) -> T:
    """What a strategy gives for a seed. Not the simplest, which Hypothesis tries first."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=2,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(example: T) -> None:
        found.append(example)

    draw()
    return found[-1]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a case is.

    Args:
        tables: Number of tables.
        transactions: Number of transactions.
        altering: Whether tables are altered.
        two_phase: Whether transactions are prepared; only one such case runs at a time.
    """

    tables: int
    transactions: int
    altering: bool
    two_phase: bool


@dataclass(slots=True)
class _Writer:
    """Tries statements, and keeps what succeeds."""

    connection: psycopg.Connection[Any]
    tables: dict[str, Table] = field(default_factory=dict)

    def tried(self, step: Step) -> bool:
        """Whether a statement succeeds inside of a transaction, and what it makes of its table."""
        if step.sql in (SAVEPOINT, RELEASE, UNDO):
            self.connection.execute(step.sql.encode())
            return True
        self.connection.execute(f"savepoint {_TRIED}".encode())
        try:
            self.connection.execute(step.sql.encode())
        except psycopg.Error:
            self.connection.execute(f"rollback to savepoint {_TRIED}".encode())
            return False
        finally:
            self.connection.execute(f"release savepoint {_TRIED}".encode())
        if step.table is not None and step.effect is not None:
            self.tables[step.table] = step.effect(self.tables[step.table])
        return True

    def alone(self, statement: str) -> list[str]:
        """The statement, if it succeeds by itself."""
        try:
            self.connection.execute(statement.encode())
        except psycopg.Error:
            return []
        return [statement]

    def transaction(self, drawn: Drawn, gid: str) -> list[str]:
        """All statements of a transaction, its begin and end included; none if it fails."""
        before = dict(self.tables)
        at_savepoint = dict(before)
        self.connection.execute("begin")
        kept = ["begin"]
        for step in drawn.steps:
            if not self.tried(step):
                continue
            kept.append(step.sql)
            if step.sql == SAVEPOINT:
                at_savepoint = dict(self.tables)
            elif step.sql == UNDO:
                self.tables = dict(at_savepoint)
        ending = f"prepare transaction '{gid}'" if drawn.ending == "prepare" else drawn.ending
        if not self.alone(ending):
            self.connection.execute("rollback")
            self.tables = before
            return []
        if drawn.ending == "rollback":
            self.tables = before
        kept.append(ending)
        if drawn.ending == "prepare":
            kept += self.alone(f"commit prepared '{gid}'")
        return kept

    def keys(self, table: Table) -> list[Key]:
        """Some of the keys that are there."""
        shown = ", ".join(f"format('%s', {column.quoted})" for column in table.key_columns)
        found = self.connection.execute(
            f"select {shown} from {table.quoted} order by md5(concat({shown})) limit"
            f" {_KEYS_KNOWN}".encode()
        )
        return found.fetchall()

    def rows(self, table: Table) -> int:
        """Number of rows."""
        row = self.connection.execute(f"select count(*) from {table.quoted}".encode()).fetchone()
        return int(row[0]) if row else 0


def write_case(path: Path, postgres: Postgres, number: int, size: Size) -> Path:
    """Write the case of a seed.

    Args:
        path: Its file; the case is called as it is.
        postgres: The server that tries the statements.
        number: The seed.
        size: How large it is.

    Returns:
        The path.
    """
    database = f"tried_{path.stem.replace('-', '_')}"
    conninfo = postgres.create_database(database, "template template0")
    try:
        with psycopg.connect(
            **conninfo, autocommit=True, client_encoding="UTF8", prepare_threshold=None,
            options="-c lock_timeout=1s -c statement_timeout=20s",
        ) as connection:  # fmt: skip
            case = _Drawing(connection, number, size).case(path.stem)
        case["expect"] = _expected(case.pop("tables"), conninfo)
        case["expect"]["from_log"] = not size.altering
    finally:
        postgres.drop_database(database)
    path.write_text(yaml_text(case), encoding="utf-8")
    return path


class _Drawing:
    def __init__(self, connection: psycopg.Connection[Any], number: int, size: Size) -> None:
        self._writer = _Writer(connection)
        self._number, self._size = number, size
        self._draws = self._transactions = 0

    def _draw(self, strategy: st.SearchStrategy[T]) -> T:
        self._draws += 1
        return draw_one(strategy, self._number * 100_000 + self._draws)

    def case(self, name: str) -> dict[str, Any]:
        """The case without what is expected."""
        writer, connection = self._writer, self._writer.connection
        for extension in NEEDS:
            connection.execute(f"create extension {extension}".encode())
        setup = [*SETUP]
        for statement in setup:
            connection.execute(statement.encode())
        setup += self._tables()
        connection.execute("create publication corpus_pub for all tables")
        during = self._during_start()
        stream = []
        while self._transactions < self._size.transactions:
            if item := self._item():
                stream.append(item)
        stream.append({"autocommit": self._touches()})
        return {
            "id": name,
            "title": f"Random tables and transactions of the seed {self._number}",
            "area": "random",
            "origin": [],
            "needs": {
                "pg_min": 15,
                "extension": list(NEEDS),
                "settings": {"max_prepared_transactions": 2},
            },
            "setup": setup,
            "during_start": during,
            "stream": stream,
            "tables": list(writer.tables.values()),
        }

    def _tables(self) -> list[str]:
        """Make the tables with their first rows."""
        writer, kept = self._writer, []
        while len(writer.tables) < self._size.tables:
            table = self._draw(tables(list(writer.tables)))
            made: list[str] = []
            for statement in table.create():
                made += writer.alone(statement)
            if len(made) < len(table.create()):
                continue
            writer.tables[table.name] = table
            for step in self._draw(first_rows(table)):
                made += writer.alone(step.sql)
            kept += made
        return kept

    def _during_start(self) -> dict[str, Any] | None:
        """A transaction that is open when capture starts."""
        if self._draw(st.booleans()):
            return None
        statements = self._transaction(list(self._writer.tables), altering=False)
        if len(statements) < 3 or statements[-1] not in ("commit", "rollback"):
            return None
        *before, end = statements
        # Whether it has written anything at all, nobody has looked.
        return {"before": before, "after": [end], "blocks": False}

    def _item(self) -> dict[str, Any] | None:
        """An item of the stream: transactions one after the other, or two at once; or upkeep."""
        writer, altering = self._writer, self._size.altering
        if altering and self._draw(st.integers(0, 19)) == 0:
            return {"autocommit": writer.alone(self._draw(upkeep(list(writer.tables.values()))))}
        if self._draw(st.integers(0, 3)) == 0:
            return self._at_once()
        statements: list[str] = []
        for _ in range(self._draw(st.integers(1, 4))):
            statements += self._transaction(list(writer.tables), altering=altering)
            for table in writer.tables.values():
                if writer.rows(table) > _MOST_ROWS:
                    statements += writer.alone(f"delete from {table.quoted}")
        return {"autocommit": statements} if statements else None

    def _touches(self) -> list[str]:
        """A change of each table, since a new column is known from the first one on."""
        kept: list[str] = []
        for table in self._writer.tables.values():
            if not self._writer.rows(table):
                for step in self._draw(first_rows(table)):
                    kept += self._writer.alone(step.sql)
            key = table.key_columns[0].quoted
            kept += self._writer.alone(f"update {table.quoted} set {key} = {key}")
        return kept

    def _at_once(self) -> dict[str, Any] | None:
        """Two transactions that run at the same time, each on tables of its own."""
        names = self._draw(st.permutations(list(self._writer.tables)))
        middle = len(names) // 2
        a = self._transaction(names[:middle], altering=False) if middle else []
        b = self._transaction(names[middle:], altering=False)
        if not a or not b:
            return {"autocommit": a + b} if a + b else None
        order = self._draw(st.permutations("a" * len(a) + "b" * len(b)))
        return {"concurrent": True, "a": a, "b": b, "order": "".join(order)}

    def _transaction(self, names: list[str], *, altering: bool) -> list[str]:
        """A transaction on some of the tables, if Postgres takes it."""
        writer = self._writer
        chosen = [writer.tables[name] for name in names]
        keys = {table.name: writer.keys(table) for table in chosen}
        drawn = self._draw(transactions(chosen, keys, altering=altering))
        if drawn.ending == "prepare" and not self._size.two_phase:
            drawn = replace(drawn, ending="commit")
        self._transactions += 1
        return writer.transaction(drawn, f"cdc_random_{self._number}_{self._transactions}")


def _expected(found: list[Table], conninfo: Mapping[str, Any]) -> dict[str, Any]:
    first, *rest = (_table(table, conninfo) for table in found)
    return {**first, "also": rest}


def _table(table: Table, conninfo: Mapping[str, Any]) -> dict[str, Any]:
    shown = ", ".join(
        f"case when num_nulls({c.quoted}) = 0 then format('%s', {c.quoted}) end as {c.quoted}"
        for c in table.columns
    )
    query = f"select {shown} from {table.quoted}"
    rows = [[cell(text) for text in row] for row in final_rows(conninfo, query)]
    return {
        "table": table.name,
        "key": list(table.key),
        "final_rows": query,
        "columns": [column.name for column in table.columns],
        "rows": sorted(rows, key=line),
    }
