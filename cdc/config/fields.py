"""Field types of cdc.yaml: what a scalar may look like, and its JSON schema."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from cdc.codecs import TYPE_NAMES
from cdc.config.units import DURATION_PATTERN, SIZE_PATTERN, jvm_size, parse_duration

#: Project and source names; they become parts of topics, slots and folders.
NAME_PATTERN = r"[a-z][a-z0-9_]{0,30}"
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_TOPIC_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,60}")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_LONGEST_IDENTIFIER = 63


def matching(pattern: re.Pattern[str], message: str) -> Callable[[str], str]:
    """A validator that refuses text that does not match as a whole, without quoting it."""

    def check(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise PydanticCustomError("shape", "{reason}", {"reason": message})
        return text

    return check


def refused(what: str) -> AfterValidator:
    """A field whose shape is known, and which a later version implements."""

    def check(value: Any) -> Any:
        if value is None:
            return value
        raise PydanticCustomError("not_supported_yet", "{what}", {"what": what})

    return AfterValidator(check)


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError("a duration is a whole number with a unit: 500ms, 30s, 5m, 12h, 7d, 2w")
    return parse_duration(value)


def _memory(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a size is a whole number with a unit: 64MB, 512m, 2g")
    return jvm_size(value)


def _identifier(text: str) -> str:
    if not text or "\0" in text or len(text.encode()) > _LONGEST_IDENTIFIER:
        raise ValueError("a Postgres name has 1 to 63 bytes")
    return text


def _type_name(text: str) -> str:
    if text not in TYPE_NAMES:
        raise ValueError(f"not a type that has a rule of its own: {', '.join(sorted(TYPE_NAMES))}")
    return text


def _host_ports(value: Any) -> str:
    parts = value.split(",") if isinstance(value, str) else value
    message = "bootstrap servers are host:port, one or more, separated by commas"
    if not isinstance(parts, list) or not parts:
        raise ValueError(message)
    cleaned = []
    for part in parts:
        match = _HOST_PORT.fullmatch(part.strip()) if isinstance(part, str) else None
        if match is None or not 0 < int(match[2]) < 65536:
            raise ValueError(message)
        cleaned.append(match[0])
    return ",".join(cleaned)


def _listen(text: str) -> str:
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError("an address to listen at is host:port; port 0 chooses a free one")
    if match[1] not in ("127.0.0.1", "localhost", "[::1]"):
        raise PydanticCustomError(
            "not_supported_yet",
            "{what}",
            {"what": "an address other than 127.0.0.1 (HTTP has no TLS yet)"},
        )
    return text


def _rooted(path: str, info: ValidationInfo) -> str:
    root = (info.context or {}).get("root")
    # "system" is libpq's word for the machine's own trust store.
    if root is None or path == "system":
        return path
    return str(root / Path(path).expanduser())


Bool = StrictBool
Text = Annotated[StrictStr, Field(min_length=1, max_length=4096)]
FilePath = Annotated[Text, AfterValidator(_rooted)]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]
Count = Annotated[StrictInt, Field(ge=1, le=2_000_000_000)]
Name = Annotated[
    StrictStr,
    AfterValidator(
        matching(
            re.compile(NAME_PATTERN),
            "a name has 1 to 31 of a-z, 0-9 and _, and begins with a letter",
        )
    ),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME_PATTERN}$"}),
]
SlotName = Annotated[
    StrictStr,
    AfterValidator(matching(_SLOT, "a slot's name has 1 to 63 of a-z, 0-9 and _")),
    WithJsonSchema({"type": "string", "pattern": f"^{_SLOT.pattern}$"}),
]
Identifier = Annotated[StrictStr, AfterValidator(_identifier)]
TopicPrefix = Annotated[
    StrictStr,
    AfterValidator(
        matching(_TOPIC_PREFIX, "a topic prefix has at most 60 of A-Z, a-z, 0-9, dot, _ and -")
    ),
    WithJsonSchema({"type": "string", "pattern": f"^{_TOPIC_PREFIX.pattern}$"}),
]
Policy = Annotated[
    Literal["clamp", "null", "string", "error", "array", "array_null", "array_error"],
    # null without quotes is YAML's own word for nothing.
    BeforeValidator(lambda value: "null" if value is None else value),
]
TypeName = Annotated[
    StrictStr,
    AfterValidator(_type_name),
    WithJsonSchema({"type": "string", "enum": sorted(TYPE_NAMES)}),
]
Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(lambda value: f"{round(value.total_seconds() * 1000)}ms", return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
JvmMemory = Annotated[
    str, BeforeValidator(_memory), WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN})
]
BootstrapServers = Annotated[
    str,
    BeforeValidator(_host_ports),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Listen = Annotated[StrictStr, AfterValidator(_listen)]
