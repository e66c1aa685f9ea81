"""Flights as an airport would write them: scheduled, departed, arrived, or cancelled. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from deploy.demo.data import FLIGHTS, TextRow

_COLUMNS = tuple(FLIGHTS.columns)
_AT = {name: index for index, name in enumerate(_COLUMNS)}
_KEY = tuple(_AT[name] for name in FLIGHTS.key)
#: Unknown until the flight has departed, or arrived.
_DEPARTURE = ("dep_time", "dep_delay")
_ARRIVAL = ("arr_time", "arr_delay", "air_time")

_SCHEDULED_BEFORE = dt.timedelta(hours=12)
_CANCELLED_AFTER = dt.timedelta(hours=2)
#: For flights whose time in the air is not known: they landed elsewhere.
_LANDED_ELSEWHERE_AFTER = dt.timedelta(hours=8)

_WHERE = " and ".join(f"{name} = %s" for name in FLIGHTS.key)
INSERT = f"insert into flights values ({', '.join(['%s'] * len(_COLUMNS))})"  # noqa: S608
DEPART = f"update flights set {', '.join(f'{c} = %s' for c in _DEPARTURE)} where {_WHERE}"  # noqa: S608
ARRIVE = f"update flights set {', '.join(f'{c} = %s' for c in _ARRIVAL)} where {_WHERE}"  # noqa: S608
CANCEL = f"delete from flights where {_WHERE}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Change:
    """One statement of the application.

    Args:
        at: When it happened, UTC.
        sql: One of INSERT, DEPART, ARRIVE, CANCEL.
        values: Its parameters, as text.
    """

    at: dt.datetime
    sql: str
    values: tuple[str | None, ...]


def scheduled_at(flight: TextRow) -> dt.datetime:
    """Planned departure, UTC."""
    hour, minute = flight[_AT["time_hour"]], flight[_AT["minute"]]
    if hour is None or minute is None:
        raise ValueError("a flight without a schedule")
    return dt.datetime.fromisoformat(hour) + dt.timedelta(minutes=int(minute))


def changes(flights: Iterable[TextRow]) -> list[Change]:
    """Everything that happens to these flights, in order of time."""
    found = [change for flight in flights for change in _life(flight)]
    found.sort(key=lambda change: change.at)
    return found


def _life(flight: TextRow) -> Iterator[Change]:
    planned = scheduled_at(flight)
    key = tuple(flight[i] for i in _KEY)
    unknown = {_AT[name] for name in (*_DEPARTURE, *_ARRIVAL)}
    schedule = tuple(None if i in unknown else value for i, value in enumerate(flight))
    yield Change(planned - _SCHEDULED_BEFORE, INSERT, schedule)
    delay = flight[_AT["dep_delay"]]
    if delay is None:
        yield Change(planned + _CANCELLED_AFTER, CANCEL, key)
        return
    departed = planned + dt.timedelta(minutes=int(delay))
    yield Change(departed, DEPART, (*_fields(flight, _DEPARTURE), *key))
    in_air = flight[_AT["air_time"]]
    flown = _LANDED_ELSEWHERE_AFTER if in_air is None else dt.timedelta(minutes=int(in_air))
    yield Change(departed + flown, ARRIVE, (*_fields(flight, _ARRIVAL), *key))


def _fields(flight: TextRow, names: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(flight[_AT[name]] for name in names)
