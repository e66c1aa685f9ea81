"""cdc.yaml to a Config; every problem with file, line, column, key and the nearest name."""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from cdc.config.models import Config
from cdc.config.secret import Secret
from cdc.config.yamlfile import MAX_BYTES, Parsed, YamlProblem, parse_yaml
from cdc.errors import ConfigError

#: Set to 1 for the children of a command that was given ``--dev``.
DEV_VARIABLE = "CDC_DEV"
_LONGEST_SHOWN = 60


def load_config(path: str | Path = "cdc.yaml", *, dev: bool | None = None) -> Config:
    """Read and check cdc.yaml.

    Args:
        path: The file.
        dev: Accept inline secrets; None: as the environment's CDC_DEV says.

    Raises:
        ConfigError: ``config_missing``, ``config_invalid`` or ``config_unsupported``; the
            message has a line ``file:line:column: key: problem`` for every problem.
    """
    shown = str(path)
    file = Path(path).expanduser().absolute()
    if dev is None:
        dev = os.environ.get(DEV_VARIABLE) == "1"
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            "config_missing",
            f"{shown} cannot be read: {error.strerror}",
            remedy="write a first one with cdc init, or name another with -c FILE",
        ) from None
    return parse_config(data, file, dev=dev, shown=shown)


def parse_config(data: bytes, path: Path, *, dev: bool = False, shown: str = "") -> Config:
    """Check the bytes of a cdc.yaml that is, or would be, at ``path``.

    Raises:
        ConfigError: As in ``load_config``.
    """
    shown = shown or str(path)
    try:
        parsed = parse_yaml(data)
    except YamlProblem as problem:
        raise ConfigError(
            "config_invalid", f"{shown}:{problem.line}:{problem.column}: {problem.message}"
        ) from None
    try:
        config = Config.model_validate(parsed.data, context={"root": path.parent, "dev": dev})
    except ValidationError as error:
        raise _config_error(error, parsed, shown) from None
    return config.complete(path, dev=dev)


def _config_error(error: ValidationError, parsed: Parsed, shown: str) -> ConfigError:
    problems: dict[tuple[int, int, str], None] = {}
    remedies: dict[str, None] = {}
    unsupported = True
    for item in error.errors(include_url=False, include_context=True, include_input=False):
        unsupported = unsupported and item["type"] == "not_supported_yet"
        path, text = _explain(dict(item), parsed)
        line, column = parsed.place(path)
        problems[line, column, f"{_dotted(path)}: {text}" if path else text] = None
        if remedy := (item.get("ctx") or {}).get("remedy"):
            remedies[remedy] = None
    lines = [f"{shown}:{line}:{column}: {text}" for line, column, text in sorted(problems)]
    return ConfigError(
        "config_unsupported" if unsupported else "config_invalid",
        "\n".join(lines),
        remedy="; ".join(remedies) or None,
    )


def _explain(item: dict[str, Any], parsed: Parsed) -> tuple[tuple[str | int, ...], str]:
    """Where the problem is, and in words; never quotes a value."""
    path: tuple[str | int, ...] = tuple(part for part in item["loc"] if part != "[key]")
    kind = item["type"]
    context = item.get("ctx") or {}
    if context.get("at") is not None:
        path = (*path, context["at"])
    if kind == "extra_forbidden":
        models = _models_at(path[:-1])
        if Secret in models:
            # A secret written like {this} is the key itself: do not show it.
            return path[:-1], "a secret is given by reference: {env: NAME} or {file: PATH}"
        names = sorted({name for model in models for name in _keys(model)})
        return path, f"unknown key{_nearest(str(path[-1]), names)}"
    if kind == "missing":
        return path, "is missing"
    if kind == "literal_error":
        names = sorted(_literals(context.get("expected", "")))
        near = _nearest_of(_value_at(parsed.data, path), names)
        return path, f"must be one of {', '.join(names)}{near}"
    if kind == "not_supported_yet":
        return path, f"not supported yet: {item['msg']}"
    if kind == "value_error":
        return path, str(context["error"])
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return path, "must be a mapping (key: value)"
    if kind == "list_type":
        return path, "must be a list"
    if kind == "string_type":
        return path, "must be text; a number or a date goes in quotes"
    if kind == "bool_type":
        return path, "must be true or false"
    if kind == "int_type":
        return path, "must be a whole number"
    if kind == "too_short":
        return path, "must not be empty"
    message: str = item["msg"]
    return path, message[:1].lower() + message[1:]


def _nearest(word: str, names: list[str]) -> str:
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known here: {', '.join(names)}" if names else ""


def _nearest_of(value: Any, names: list[str]) -> str:
    near = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]}?" if near else ""


def _literals(expected: str) -> Iterator[str]:
    for part in expected.replace(" or ", ", ").split(", "):
        yield part.strip("'")


def _value_at(data: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _dotted(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{_shown_key(part)}" if text else _shown_key(part)
    return text


def _shown_key(key: str) -> str:
    """A key as it can stand in one line of a message."""
    plain = key.isprintable() and not any(sign in key for sign in " :'\"")
    return key if plain and 0 < len(key) <= _LONGEST_SHOWN else ascii(key[:_LONGEST_SHOWN])


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name


def _models_at(path: tuple[str | int, ...]) -> list[type[BaseModel]]:
    """The models that may stand at ``path`` of cdc.yaml."""
    found: list[Any] = [Config]
    for part in path:
        inner: list[Any] = []
        for kind in found:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                by_key = {field.alias or n: field for n, field in kind.model_fields.items()}
                if part in by_key:
                    inner.extend(_alternatives(by_key[str(part)].annotation))
            elif typing.get_origin(kind) is dict:
                inner.extend(_alternatives(typing.get_args(kind)[1]))
            elif typing.get_origin(kind) is list:
                inner.extend(_alternatives(typing.get_args(kind)[0]))
        found = inner
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _alternatives(part)
    elif origin is typing.Annotated:
        yield from _alternatives(typing.get_args(annotation)[0])
    else:
        yield annotation
