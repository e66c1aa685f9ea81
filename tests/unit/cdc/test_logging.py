"""Logs: JSON lines without secrets and without the text of foreign errors."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
import structlog

from cdc.errors import SourceStopped
from cdc.logging import configure_logging
from cdc.redaction import redact, remember_secret


@pytest.fixture
def lines():
    """Lines that were logged since the fixture's start, as objects."""
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    configure_logging("capture:shop", stream=stream)

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    yield read
    structlog.reset_defaults()
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_is_one_json_object(lines):
    structlog.get_logger("x").info("copied", table="public.t", rows=5)
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "copied",
        "table": "public.t",
        "rows": 5,
        "process": "capture:shop",
        "level": "info",
    }


def test_secrets_are_masked_wherever_they_stand(lines):
    remember_secret("c4nary-s3cret")
    structlog.get_logger().warning(
        "with c4nary-s3cret",
        password="other",
        nested={"a": ["x c4nary-s3cret y"], "kafka_password": "other"},
        dsn="postgres://cdc:other@db/x",
        conninfo="host=db password=other user=cdc",
        header="Authorization: Bearer other.token",
        jaas='password="other" user="u"',
    )
    text = json.dumps(lines())
    assert "c4nary" not in text
    assert "other" not in text
    assert "host=db password=*** user=cdc" in text
    assert "postgres://cdc:***@db/x" in text


def test_an_exception_tells_types_and_places_only(lines):
    log = structlog.get_logger()
    try:
        try:
            raise ValueError("c4nary-row-value")
        except ValueError as error:
            raise SourceStopped("bad_row", "stopped", table="public.t", remedy="do") from error
    except SourceStopped:
        log.exception("failed")
    (line,) = lines()
    ours, foreign = line["exception"]
    assert (ours["type"], ours["code"], ours["table"]) == ("SourceStopped", "bad_row", "public.t")
    assert foreign["type"] == "ValueError"
    assert any("test_an_exception_tells" in frame for frame in foreign["frames"])
    assert "c4nary" not in json.dumps(line)


def test_warnings_of_libraries_come_through(lines):
    logging.getLogger("lib").warning("password=other")
    logging.getLogger("lib").info("not this")
    (line,) = lines()
    assert (line["event"], line["logger"], line["level"]) == ("password=***", "lib", "warning")


def test_a_later_set_up_reaches_loggers_made_before():
    log = structlog.get_logger()
    log.debug("before")
    stream = io.StringIO()
    configure_logging("x", stream=stream)
    try:
        log.info("after")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    assert json.loads(stream.getvalue())["event"] == "after"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password='a b' x", "password=*** x"),
        ('{"password": "a\\"b", "x": 1}', '{"password": ***, "x": 1}'),
        ("PASSWORD: abc, next", "PASSWORD: ***, next"),
        ("no secrets here", "no secrets here"),
        ("kafka://a:b@c", "kafka://a:***@c"),
        ("http://127.0.0.1:80/path@x", "http://127.0.0.1:80/path@x"),
    ],
)
def test_what_looks_like_a_secret(text: str, kept: str):
    assert redact(text) == kept
