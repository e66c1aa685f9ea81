"""Fills the demo's database before capture begins: what its snapshot will be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from deploy.demo.data import FLIGHTS, SMALL_TABLES, TABLES, DemoTable, TextRow, read

_COLUMNS = list(FLIGHTS.columns)
_TIME_HOUR, _MINUTE = _COLUMNS.index("time_hour"), _COLUMNS.index("minute")
#: Of all flights, how many are played live; a small demo plays a larger part.
_LIVE_SHARE = 10
_FEWEST_LIVE = 500


@dataclass(frozen=True, slots=True)
class Flights:
    """The flights of one demo, in the order of their schedule.

    Args:
        past: In the database before capture begins.
        live: Played as transactions afterwards.
    """

    past: list[TextRow]
    live: list[TextRow]

    @property
    def live_from(self) -> str:
        """Planned hour of the first flight that is played, ISO 8601 in UTC."""
        return str(self.live[0][_TIME_HOUR])


def read_flights(rows: int | None) -> Flights:
    """The first ``rows`` flights of 2013 by schedule (all when None), split in two.

    Raises:
        EnvironmentProblem: As ``read``.
    """
    return split(read(FLIGHTS), rows)


def split(all_flights: Iterable[TextRow], rows: int | None) -> Flights:
    """As ``read_flights``, of these flights."""
    flights = sorted(all_flights, key=_schedule)[:rows]
    live = min(len(flights), max(len(flights) // _LIVE_SHARE, _FEWEST_LIVE))
    return Flights(flights[: len(flights) - live], flights[len(flights) - live :])


def seed(conninfo: dict[str, Any], past: list[TextRow]) -> dict[str, int]:
    """Create the tables and load them by COPY; table name to rows."""
    counts = {}
    with psycopg.connect(**conninfo) as connection:
        for table in TABLES:
            connection.execute(table.ddl.encode())
        for table in SMALL_TABLES:
            counts[table.name] = _copy(connection, table, read(table))
        counts[FLIGHTS.name] = _copy(connection, FLIGHTS, past)
        # As autovacuum would have done in time; the first load's progress counts by it.
        connection.execute("analyze")
    return counts


def _copy(connection: psycopg.Connection[Any], table: DemoTable, rows: Iterable[TextRow]) -> int:
    count = 0
    statement = sql.SQL("copy {} from stdin").format(sql.Identifier(table.name))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
            count += 1
    return count


def _schedule(flight: TextRow) -> tuple[str, int]:
    # ISO 8601 of one form orders as text.
    return str(flight[_TIME_HOUR]), int(flight[_MINUTE] or 0)
