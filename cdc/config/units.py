"""Durations and sizes with units, as people write them in cdc.yaml. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
# Multiples of 1024, as in postgresql.conf and in the JVM's options.
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,15})\s*([A-Za-z]+)")
#: JSON schema patterns of what the two functions accept.
DURATION_PATTERN = r"^[0-9]{1,15}\s*(ms|s|m|min|h|d|w)$"
SIZE_PATTERN = r"^[0-9]{1,15}\s*([kKmMgGtT]([iI]?[bB])?|[bB])$"


def parse_duration(text: str) -> timedelta:
    """``30s``, ``500ms``, ``5m``, ``7d`` to a positive timedelta.

    Raises:
        ValueError: No number with a unit, or nothing, or more than timedelta can hold.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = _DURATION_UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise ValueError("a duration is a whole number with a unit: 500ms, 30s, 5m, 12h, 7d, 2w")
    try:
        value = unit * int(match[1])
    except OverflowError:
        raise ValueError("the duration is too long") from None
    if not value:
        raise ValueError("the duration must be more than nothing")
    return value


def parse_size(text: str) -> int:
    """``64MB``, ``512m``, ``2g``, ``1GiB`` to bytes; every unit is a multiple of 1024.

    Raises:
        ValueError: No number with a unit, or nothing.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = None
    if match is not None:
        unit = match[2].lower()
        factor = _SIZE_UNITS.get("" if unit == "b" else unit.removesuffix("b").removesuffix("i"))
        if unit in ("i", "ib"):
            factor = None
    if match is None or factor is None:
        raise ValueError("a size is a whole number with a unit: 64MB, 512m, 2g")
    value = int(match[1]) * factor
    if not value:
        raise ValueError("the size must be more than nothing")
    return value


def jvm_size(text: str) -> str:
    """A size as the JVM's ``-Xmx`` takes it, in whole mebibytes (``2048m``).

    Raises:
        ValueError: Not a size, or below one mebibyte.
    """
    mebibytes = parse_size(text) >> 20
    if mebibytes < 1:
        raise ValueError("the memory must be 1MB or more")
    return f"{mebibytes}m"
