"""Types with random values of their whole range, as SQL. Pure: strategies of Hypothesis."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

from hypothesis import strategies as st

from tests.support.pgtypes import EXTENSIONS, LITERALS, OWN

Texts = st.SearchStrategy[str]

#: What tables of random types need: types of every kind.
SETUP: Final = (
    *(statement.strip() for statement in OWN.strip().split(";\n")),
    "create type nested as (p pair, xs text[], at timestamptz)",
    "create domain pairs as pair[]",
)
NEEDS: Final = EXTENSIONS


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of columns.

    Args:
        sql: As it stands in a statement.
        values: SQL expressions of values.
        tame: The same without values that Delta's dates and decimals cannot hold.
        key: Whether it can be of a key.
        becomes: Types that ALTER TABLE can make of it without losing a value.
        volatile: A default that Postgres takes for volatile, though it is always the same.
    """

    sql: str
    values: Texts
    tame: Texts
    key: bool = False
    becomes: tuple[str, ...] = ()
    volatile: str | None = None

    @property
    def far(self) -> bool:
        """Whether it has values that Delta's type cannot hold."""
        return self.tame is not self.values


def literal(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


# --- texts ---

_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
_AWKWARD = (
    "", " ", "NULL", "null", "\\N", "\\", "\\\\", "'", '"', '""', "''", ",", "{a,b}", "{}",
    "(a,b)", "%s %(a)s %", " lead", "trail ",
    "\t\n\r\v\f\x01\x1f\x7f", "\u2028\u2029\x85\ufeff\uffff", "é😀", "e\u0301", "\\.",
    "a\\nb", "$1", "$$", "null,", "t", "f", "NaN", "0", '{"a": 1}', "\\u0000",
    "__debezium_unavailable_value", "2024-01-01", "x" * 300, "ß\u0130\u0131",
)  # fmt: skip
_WORDS = st.sampled_from(_AWKWARD) | st.text(_CHARACTERS, max_size=10)


def _sized(most: int) -> Texts:
    return _WORDS.map(lambda text: text[:most])


@st.composite
def _large(draw: st.DrawFn) -> str:
    """An expression of a text that is stored out of line, and that does not compress."""
    salt, blocks = draw(st.integers(0, 10**6)), draw(st.integers(70, 300))
    return f"(select string_agg(md5(i || '.{salt}'), '') from generate_series(1, {blocks}) i)"


def _number(number: Decimal) -> str:
    return "NaN" if number.is_nan() else f"{number:f}"


_DECIMALS = st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30
)
_NUMERIC = st.one_of(
    _DECIMALS.map(_number),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "1.500", "-0.00", "0", "1e-16383", "1e40"]),
    st.integers(-(10**60), 10**60).map(str),
)
_HUGE = st.sampled_from(
    ["repeat('9', 131072)::numeric", "('-0.' || repeat('7', 16383))::numeric",
     "(repeat('1', 131072) || '.' || repeat('3', 16383))::numeric"]
)  # fmt: skip


_EXACT = Context(prec=1200)


def _scaled(precision: int, scale: int) -> Texts:
    most = 10**precision - 1
    return st.one_of(st.integers(-most, most), st.sampled_from((most, -most, 0, 1, -1))).map(
        lambda n: _number(Decimal(n).scaleb(-scale, _EXACT))
    )


_DATES = st.dates().map(str)
_FAR_DATES = st.sampled_from(
    ["infinity", "-infinity", "5874897-12-31", "4713-01-01 BC", "0001-12-31 BC", "10000-01-01"]
) | st.builds("{:04}-{:02}-{:02} BC".format, st.integers(1, 4712), st.integers(1, 12),
              st.integers(1, 28))  # fmt: skip
_MOMENTS = st.datetimes().map(str) | st.sampled_from(
    ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999",
     "1582-10-10 12:00:00", "1900-01-01 00:00:00.5", "2024-02-29 23:59:59.1"]
)  # fmt: skip
_FAR_MOMENTS = st.sampled_from(
    ["infinity", "-infinity", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC",
     "0001-01-01 00:00:00.000001 BC", "10000-01-01 00:00:00"]
)  # fmt: skip
_ZONES = st.sampled_from(["+00", "+05:45", "-11", "+14", "-03:30"])


def _zoned(moment: str, zone: str) -> str:
    if moment.endswith("infinity"):
        return moment
    day, _, era = moment.partition(" BC")
    return f"{day}{zone}{' BC' if moment.endswith(' BC') else era}"


# A zone may carry a moment beyond the first or the last year.
_INNER = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 28)).map(str)  # noqa: DTZ001
_TIMES = st.times().map(str) | st.sampled_from(["24:00:00", "00:00:00", "23:59:59.999999"])
_INTERVALS = st.one_of(
    st.builds(
        "{} years {} mons {} days {}:{:02}:{:02}.{:06}".format,
        st.integers(-1000, 1000), st.integers(-30, 30), st.integers(-40, 40),
        st.integers(-500, 500), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999),
    ),
    st.sampled_from(LITERALS["interval"]),
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False,
    allow_infinity=False) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_SEPARATORS = [(",", ":"), (" ,  ", " :\n"), (", ", ": ")]


@st.composite
def _json(draw: st.DrawFn) -> str:
    value: Any = draw(_JSON)
    spaces = draw(st.sampled_from(_SEPARATORS))
    return json.dumps(value, ensure_ascii=draw(st.booleans()), separators=spaces)


@st.composite
def array_text(draw: st.DrawFn, elements: Texts, delimiter: str = ",") -> str:
    """The text of an array: of up to three dimensions, with bounds now and then."""
    sizes = draw(st.lists(st.integers(1, 3), max_size=3))
    if not sizes:
        return "{}"

    def part(rest: list[int]) -> str:
        if rest:
            return "{" + delimiter.join(part(rest[1:]) for _ in range(rest[0])) + "}"
        text = draw(st.none() | elements)
        if text is None:
            return "NULL"
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    bounds = ""
    if draw(st.integers(0, 4)) == 0:
        starts = [draw(st.integers(-3, 3)) for _ in sizes]
        ends = zip(starts, sizes, strict=True)
        bounds = "".join(f"[{start}:{start + size - 1}]" for start, size in ends) + "="
    return bounds + part(sizes)


@st.composite
def _composite(draw: st.DrawFn, *fields: Texts) -> str:
    """The text of a composite value."""
    shown = []
    for field in fields:
        text = draw(st.none() | field)
        shown.append(
            "" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
        )
    return "(" + ",".join(shown) + ")"


@st.composite
def _range(draw: st.DrawFn, ends: st.SearchStrategy[Any]) -> str:
    low, high = sorted((draw(ends), draw(ends)))
    left, right = draw(st.sampled_from([("[", "]"), ("[", ")"), ("(", ")"), ("(", "]")]))
    shown = [f'"{low}"' if draw(st.booleans()) else "", f'"{high}"' if draw(st.booleans()) else ""]
    return draw(st.sampled_from(["empty", f"{left}{shown[0]},{shown[1]}{right}"]))


# --- kinds ---

_ARRAYS_OF: dict[str, tuple[Texts, str]] = {}
KINDS: dict[str, Kind] = {}


def _add(
    sql: str,
    texts: Texts,
    *,
    far: Texts | None = None,
    more: Texts | None = None,
    key: bool = False,
    becomes: tuple[str, ...] = (),
    volatile: str | None = None,
    array: bool = True,
) -> None:
    """One type, and its array.

    Args:
        sql: The type.
        texts: Texts that its input takes.
        far: Those that Delta's type cannot hold.
        more: Expressions of further values.
        key: See ``Kind``.
        becomes: See ``Kind``.
        volatile: See ``Kind``.
        array: Whether its array is a kind, too.
    """
    tame = texts.map(literal)
    if more is not None:
        tame = st.one_of(tame, tame, tame, more)
    values = tame if far is None else st.one_of(tame, far.map(literal))
    KINDS[sql] = Kind(sql, values, tame, key, becomes, volatile)
    if array:
        elements = texts if far is None else texts | far
        arrays = array_text(elements, ";" if sql == "box" else ",").map(literal)
        KINDS[f"{sql}[]"] = Kind(f"{sql}[]", arrays, arrays)


def _samples(*names: str, key: bool = False) -> None:
    for name in names:
        _add(name, st.sampled_from(LITERALS[name]), key=key)


def _integers(bits: int) -> Texts:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return (st.integers(low, high) | st.integers(-20, 20) | st.sampled_from((low, high))).map(str)


_add("boolean", st.sampled_from(["t", "f"]), key=True, becomes=("text",))
_add("smallint", _integers(16), key=True, becomes=("integer", "bigint", "numeric", "text"))
_add(
    "integer", _integers(32), key=True, becomes=("bigint", "numeric", "text", "double precision"),
    volatile="(7 + 0 * random())::int",
)  # fmt: skip
_add("bigint", _integers(64), key=True, becomes=("numeric", "text"))
_add("oid", st.integers(0, 2**32 - 1).map(str))
_add("real", st.floats(width=32).map(repr), becomes=("double precision", "text"))
_add(
    "double precision", st.floats().map(repr), key=True, becomes=("text",),
    volatile="random() * 0",
)  # fmt: skip
_add(
    "numeric", _NUMERIC, more=_NUMERIC.map(literal) | _HUGE, key=True, becomes=("text",),
    volatile="(random() * 0)::numeric(4,2)",
)  # fmt: skip
_NAN = st.just("NaN")
_add("numeric(10,2)", _scaled(10, 2), far=_NAN, key=True,
     becomes=("numeric(12,2)", "numeric(12,4)", "numeric", "text"))  # fmt: skip
_add("numeric(12,2)", _scaled(12, 2), far=_NAN, becomes=("numeric", "text"))
_add("numeric(12,4)", _scaled(12, 4), far=_NAN, becomes=("numeric", "text"))
_add("numeric(38,0)", _scaled(38, 0), far=_NAN, key=True, becomes=("text",))
_add("numeric(38,38)", _scaled(38, 38), far=_NAN, becomes=("text",))
_add("numeric(39,3)", _scaled(39, 3))
_add("numeric(1000,900)", _scaled(1000, 900))
_samples("money")
_add(
    "text",
    _WORDS,
    more=_large(),
    key=True,
    becomes=("varchar",),
    volatile="left(random()::text, 0)",
)
_add("varchar", _WORDS, more=_large(), key=True, becomes=("text",))
_add("varchar(12)", _sized(12), key=True, becomes=("text", "varchar(20)", "varchar"))
_add("varchar(20)", _sized(20), becomes=("text",))
_add("character(6)", _sized(6), key=True, becomes=("text", "varchar"))
_add("name", _sized(15), key=True)
_samples('"char"' if '"char"' in LITERALS else "refcursor")
_add(
    "bytea", st.binary(max_size=20).map(lambda b: "\\x" + b.hex()),
    more=_large().map(lambda e: f"decode({e}, 'hex')"), key=True,
)  # fmt: skip
_add("date", _DATES, far=_FAR_DATES, key=True, becomes=("text",),
     volatile="('2024-02-29'::date + (random() * 0)::int)")  # fmt: skip
_add("time", _TIMES, key=True)
_add("time(3)", _TIMES)
_add("timetz", st.builds("{}{}".format, _TIMES, _ZONES), key=True)
_add("timestamp", _MOMENTS, far=_FAR_MOMENTS, key=True, becomes=("text", "timestamp(3)"))
# The last microsecond would be rounded up to a text that Postgres prints, and does not take.
_add("timestamp(3)", _INNER, far=_FAR_MOMENTS.filter(lambda text: ".999999" not in text))
_add("timestamptz", st.builds(_zoned, _INNER, _ZONES),
     far=st.builds(_zoned, _FAR_MOMENTS, st.just("+00")), key=True, becomes=("text",),
     volatile="('2024-02-29'::timestamptz + random() * interval '0')")  # fmt: skip
_add("interval", _INTERVALS, key=True)
_add("interval day to second(2)", _INTERVALS)
_add("bit(5)", st.text("01", min_size=5, max_size=5), key=True)
_add("bit varying", st.text("01", max_size=70), key=True)
_add("uuid", st.uuids().map(str), key=True, becomes=("text",))
_add("json", _json(), more=_large().map(lambda e: f"to_json({e})"))
_add("jsonb", _json(), more=_large().map(lambda e: f"to_jsonb({e})"), key=True, becomes=("text",))
_samples("inet", "cidr", "macaddr", "macaddr8", key=True)
_samples("xml", "jsonpath", "point", "lseg", "path", "box", "polygon", "line", "circle")
_samples("tsvector", "tsquery", "pg_lsn", "pg_snapshot", "xid8", "tid", "int2vector", "oidvector")
_samples("ltree", "hstore", "regclass", "regtype", "tsrange", "textrange", "tstzmultirange")
_samples("citext", "mood", "positive", "price2", key=True)
_add("int4range", _range(st.integers(-1000, 1000)), key=True)
_add("int8range", _range(st.integers(-(2**60), 2**60)))
_add("numrange", _range(st.decimals(-10, 10, places=3)))
_add("daterange", _range(st.dates()), key=True)
_add("tstzrange", _range(st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 28))))  # noqa: DTZ001
_add("int4multirange", st.sampled_from(LITERALS["int4multirange"]))
_PAIR = _composite(_integers(32), _WORDS)
_add("pair", _PAIR, key=True)
_NESTED = _composite(_PAIR, array_text(_WORDS), _MOMENTS)
_add("nested", _NESTED)
_add("tags", array_text(_WORDS), array=False)
_add("pairs", array_text(_PAIR), array=False)
KINDS["text[]"] = Kind(
    "text[]",
    KINDS["text[]"].values | _large().map(lambda e: f"regexp_split_to_array({e}, 'a')"),
    KINDS["text[]"].values,
    key=True,
)
