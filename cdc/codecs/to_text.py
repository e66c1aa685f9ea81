"""A value's JSON form → Postgres' own text of it: the inverse of ``to_json``. Pure.

Needed where a replica holds text: arrays, and columns that cdc.yaml wants as text.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import inf, nextafter
from typing import Any

#: JSON value, never None, to Postgres' text.
TextOf = Callable[[Any], str]

# Above these exponents Postgres prints a float with an exponent.
_DIGITS4, _DIGITS8 = 6, 15
_LOWEST_EXPONENT = -4
# As many digits as the longest shortest form of a double.
_MOST_DIGITS = 17
# So few digits of such a number are never the middle between two doubles.
_CLEAR_DIGITS = 15
_CLEAR_BELOW = 2**53


def same(value: Any) -> Any:
    """The value itself."""
    return value


def boolean(value: bool) -> str:
    """``t`` or ``f``."""
    return "t" if value else "f"


def integer(value: int) -> str:
    """Digits."""
    return str(value)


def binary(value: str) -> str:
    """The hex form."""
    return "\\x" + binascii.a2b_base64(value).hex()


def timestamp(value: str) -> str:
    """Postgres' ISO style, without the zeros that end a fraction."""
    if value[10:11] != "T":
        return value
    zone = "+00" if value[-1] == "Z" else ""
    fraction = value[19:].rstrip("Z").rstrip("0")
    return f"{value[:10]} {value[11:19]}{'' if fraction == '.' else fraction}{zone}"


def real(value: float | str) -> str:
    """A float4, of which Postgres prints nine digits at the most."""
    # Every number of up to 15 digits is the shortest form of a double of its own, so these are
    # the digits that came; what lies between two doubles does not matter to them.
    return value if isinstance(value, str) else _printed(value, _repr, _DIGITS4)


def double(value: float | str) -> str:
    """A float8."""
    return value if isinstance(value, str) else _printed(value, _shortest, _DIGITS8)


def _printed(value: float, shortest: Callable[[float], Decimal], highest: int) -> str:
    number = float(value)
    if number == 0:
        return "-0" if str(number)[0] == "-" else "0"
    shown = shortest(abs(number)).as_tuple()
    digits, exponent = shown.digits, shown.exponent
    text = "".join(map(str, digits)).rstrip("0")
    # The exponent of the first digit.
    first = int(exponent) + len(digits) - 1
    if first < _LOWEST_EXPONENT or first >= highest:
        mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
        body = f"{mantissa}e{'-' if first < 0 else '+'}{abs(first):02}"
    elif first < 0:
        body = "0." + "0" * (-first - 1) + text
    elif len(text) <= first + 1:
        body = text.ljust(first + 1, "0")
    else:
        body = f"{text[: first + 1]}.{text[first + 1 :]}"
    return ("-" if number < 0 else "") + body


def _repr(number: float) -> Decimal:
    """The fewest digits that mean this positive number, as Python sees it."""
    return Decimal(repr(number))


def _shortest(number: float) -> Decimal:
    """The fewest digits that mean this positive number, as Postgres sees it.

    Unlike Python's ``repr``, Postgres never takes the middle between two numbers for one of
    them (1e23 is printed as 9.999999999999999e+22).
    """
    found = _repr(number)
    if len(found.as_tuple().digits) <= _CLEAR_DIGITS and number < _CLEAR_BELOW:
        return found
    exact = Fraction(number)
    low = (exact + Fraction(nextafter(number, 0))) / 2
    above = nextafter(number, inf)
    # Past the largest number the step is that below it.
    high = 2 * exact - low if above == inf else (exact + Fraction(above)) / 2
    if low < Fraction(found) < high:
        return found
    for count in range(1, _MOST_DIGITS + 1):
        nearest = Decimal(f"{number:.{count - 1}e}")
        step = Decimal(1).scaleb(int(nearest.as_tuple().exponent))
        inside = [c for c in (nearest, nearest - step, nearest + step) if low < Fraction(c) < high]
        if inside:
            return min(inside, key=lambda c: abs(Fraction(c) - exact))
    return found
