"""Queries that the demo asks while the tables change."""

from __future__ import annotations

from dataclasses import dataclass

_BY_AIRLINE = """\
select a.name as airline,
       count(*) filter (f.dep_time is null) as scheduled,
       count(*) filter (f.dep_time is not null and f.arr_time is null) as in_the_air,
       count(f.arr_time) as landed,
       round(avg(f.dep_delay), 1) as minutes_late
from nyc.public.flights f join nyc.public.airlines a on a.carrier = f.carrier
where f.time_hour >= 'LIVE_FROM'
group by a.name order by count(*) desc, a.name limit 5"""

_BY_PLANE = """\
select p.manufacturer, a.name as airline, count(*) as flights,
       count(distinct p.tailnum) as planes, sum(p.seats::bigint * f.distance) as seat_miles
from nyc.public.flights f
join nyc.public.planes p on p.tailnum = f.tailnum
join nyc.public.airlines a on a.carrier = f.carrier
where f.arr_time is not null and f.time_hour >= 'LIVE_FROM'
group by p.manufacturer, a.name order by seat_miles desc nulls last, airline limit 5"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A question and the ``cdc query`` that answers it."""

    question: str
    sql: str


def samples(live_from: str) -> list[Sample]:
    """The queries; they look at flights planned for ``live_from`` (ISO 8601) or later."""
    return [
        Sample(question, sql.replace("LIVE_FROM", live_from))
        for question, sql in (
            ("how do the airlines do just now?", _BY_AIRLINE),
            ("whose planes have carried most?", _BY_PLANE),
        )
    ]
