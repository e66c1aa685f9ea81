"""Durations and sizes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.units import jvm_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("5 min", timedelta(minutes=5)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(days=14)),
    ],
)
def test_durations(text: str, value: timedelta):
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    "text", ["", "7", "7 days", "1.5h", "-1s", "0s", "s", "1S", "9" * 15 + "w"]
)
def test_bad_durations(text: str):
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64MB", 64 << 20),
        ("64MiB", 64 << 20),
        ("512m", 512 << 20),
        ("2g", 2 << 30),
        ("1kB", 1024),
        ("100B", 100),
        ("1 TB", 1 << 40),
    ],
)
def test_sizes(text: str, value: int):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "64", "1.5g", "0m", "1x", "1i", "1ib", "1bb", "MB"])
def test_bad_sizes(text: str):
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_jvm_sizes_are_whole_mebibytes():
    assert jvm_size("2g") == "2048m"
    assert jvm_size("1500kB") == "1m"
    with pytest.raises(ValueError, match="1MB"):
        jvm_size("1kB")


@given(st.text(alphabet="0123456789msMhdwkKgGtTiIbB -.", max_size=12))
def test_any_text_parses_or_is_a_value_error(text: str):
    for parse in (parse_duration, parse_size):
        try:
            assert parse(text)
        except ValueError:
            pass
