"""What of a child's output is kept."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.daemon.logfiles import LogFile, safe_line
from cdc.redaction import remember_secret

CANARY = "c4nary-row-value"


def lines(file: LogFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.path.read_text().splitlines()]


def test_json_lines_are_kept_whatever_the_cuts(tmp_path):
    file = LogFile(tmp_path, "capture:shop")
    text = b"".join(json.dumps({"event": "e", "n": n}).encode() + b"\n" for n in range(50))
    for start in range(0, len(text), 7):
        file.feed(text[start : start + 7])
    file.close()
    assert [line["n"] for line in lines(file)] == list(range(50))
    assert file.path.name == "capture.shop.jsonl"
    assert os.stat(file.path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (
            f"psycopg.errors.UniqueViolation: Key (id)=({CANARY}) exists",
            "psycopg.errors.UniqueViolation",
        ),
        (f"ValueError: bad value {CANARY}", "ValueError"),
        (
            f"Caused by: org.apache.spark.SparkNumberFormatException: [CAST] '{CANARY}'",
            "Caused by: org.apache.spark.SparkNumberFormatException",
        ),
        ("\tat org.apache.spark.X.y(X.scala:12)", "\tat org.apache.spark.X.y(X.scala:12)"),
        ('  File "/a/b.py", line 3, in f', '  File "/a/b.py", line 3, in f'),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        (
            f"26/01/02 03:04:05 WARN TaskSetManager: Lost task: java.lang.Exception: {CANARY}",
            "26/01/02 03:04:05 WARN TaskSetManager: Lost task: java.lang.Exception",
        ),
        (
            f"26/01/02 03:04:05 ERROR Executor: The value '{CANARY}' of the type",
            "26/01/02 03:04:05 ERROR Executor: The value … of the type",
        ),
        (f"DETAIL: {CANARY}", None),
        (f"    raise ValueError({CANARY!r})", None),
    ],
)
def test_what_could_hold_a_row_is_cut(line: str, kept: str | None):
    assert safe_line(line) == kept


def test_raw_lines_are_wrapped_and_redacted(tmp_path):
    remember_secret("hunter22222")
    file = LogFile(tmp_path, "apply", keep_raw=True)
    file.feed(b"plain hunter22222 text\nTraceback (most recent call last):\nno end")
    file.close()
    assert [line["event"] for line in lines(file)] == [
        "plain *** text",
        "Traceback (most recent call last):",
        "no end",
    ]
    assert all(line["process"] == "apply" and line["raw"] for line in lines(file))


def test_secrets_in_json_lines_are_masked_and_stay_json(tmp_path):
    file = LogFile(tmp_path, "apply")
    file.feed(b'{"event": "password=abc def", "password": "abc", "n": 1}\n')
    file.close()
    assert lines(file) == [{"event": "password=*** def", "password": "***", "n": 1}]


def test_files_rotate(tmp_path):
    file = LogFile(tmp_path, "apply", largest=1000, keep=2)
    for n in range(100):
        file.feed(json.dumps({"event": "x" * 50, "n": n}).encode() + b"\n")
    file.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["apply.jsonl", "apply.jsonl.1", "apply.jsonl.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert lines(file)[-1]["n"] == 99


@given(st.binary(max_size=300))
def test_any_bytes_leave_json_lines(tmp_path_factory, data: bytes):
    folder = tmp_path_factory.mktemp("logs")
    file = LogFile(folder, "x", keep_raw=True)
    file.feed(data)
    file.close()
    for line in file.path.read_bytes().split(b"\n")[:-1]:
        assert isinstance(json.loads(line), dict)
