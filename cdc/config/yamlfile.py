"""cdc.yaml to plain data and the line and column of everything in it.

Only YAML's plain part is accepted: no tags, no merge keys, no duplicate keys, bounded size,
depth and aliases. Messages never quote the file, which could hold a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Path = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_ALIASES = 100
MAX_VALUES = 100_000

_TAG = "tag:yaml.org,2002:"
# What the parser quotes of the file, unless it is one character or an event's name.
_QUOTED = re.compile(r"'(?!<)[^']{3,}'")


class YamlProblem(ValueError):
    """The text is not acceptable YAML; ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


@dataclass(slots=True)
class Parsed:
    """Plain data with places: (line, column) from 1, of each key or list item."""

    data: Any
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def place(self, path: Path) -> tuple[int, int]:
        """The place of ``path``, or of its nearest parent that is in the file."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, (1, 1))


def parse_yaml(data: bytes) -> Parsed:
    """Read one YAML document.

    Raises:
        YamlProblem: Not YAML, or a part of YAML that is not accepted here.
    """
    if len(data) > MAX_BYTES:
        raise YamlProblem(f"the file is larger than {MAX_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise YamlProblem("the file is not UTF-8", line, column) from None
    try:
        _check_events(text)
        yaml = YAML(typ="safe", pure=True)
        node = yaml.compose(text)
        return _Builder(yaml).build(node)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = _QUOTED.sub("…", error.problem or "cannot be read")
        raise YamlProblem(f"not YAML: {problem}", *where) from None
    except YAMLError as error:
        # ReaderError: a character that YAML forbids; its text would quote it.
        position = getattr(error, "position", 0) or 0
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        raise YamlProblem("not YAML: a character that is not allowed", line, column) from None


def _check_events(text: str) -> None:
    # The parser is not recursive, the composer is: bounds are checked on events.
    depth = documents = aliases = values = 0
    for event in YAML(typ="safe", pure=True).parse(text):
        mark = event.start_mark
        values += 1
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        elif isinstance(event, AliasEvent):
            aliases += 1
        elif isinstance(event, DocumentStartEvent):
            documents += 1
        reason = (
            f"nested deeper than {MAX_DEPTH}"
            if depth > MAX_DEPTH
            else f"more than {MAX_ALIASES} aliases"
            if aliases > MAX_ALIASES
            else f"more than {MAX_VALUES} values"
            if values > MAX_VALUES
            else "more than one document"
            if documents > 1
            else None
        )
        if reason:
            raise YamlProblem(reason, mark.line + 1, mark.column + 1)


class _Builder:
    """Plain data from composed nodes; nodes shared by aliases are expanded, within bounds."""

    def __init__(self, yaml: YAML) -> None:
        self._constructor = yaml.constructor
        self._values = 0
        self._open: set[int] = set()
        self._places: dict[Path, tuple[int, int]] = {}

    def build(self, node: Node | None) -> Parsed:
        if node is None:
            return Parsed({})
        self._places[()] = _place(node)
        return Parsed(self._value(node, ()), self._places)

    def _value(self, node: Node, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise YamlProblem(f"more than {MAX_VALUES} values", *_place(node))
        if id(node) in self._open:
            raise YamlProblem("an alias inside of what it stands for", *_place(node))
        if len(path) > MAX_DEPTH:
            raise YamlProblem(f"nested deeper than {MAX_DEPTH}", *_place(node))
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return self._sequence(node, path)
            return self._scalar(node)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        self._plain_tag(node, "map")
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, str) or not key_node.tag.startswith(_TAG):
                raise YamlProblem("a key must be a name", *_place(key_node))
            if key_node.tag == f"{_TAG}merge":
                raise YamlProblem("merge keys (<<) are not accepted", *_place(key_node))
            if key in result:
                first = self._places[(*path, key)]
                raise YamlProblem(
                    f"the key {'.'.join(map(str, (*path, key)))} is given twice, "
                    f"first in line {first[0]}",
                    *_place(key_node),
                )
            self._places[(*path, key)] = _place(key_node)
            result[key] = self._value(value_node, (*path, key))
        return result

    def _sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        self._plain_tag(node, "seq")
        result = []
        for index, item in enumerate(node.value):
            self._places[(*path, index)] = _place(item)
            result.append(self._value(item, (*path, index)))
        return result

    def _scalar(self, node: Node) -> Any:
        tag = node.tag or ""
        kind = tag.removeprefix(_TAG) if tag.startswith(_TAG) else None
        if kind == "null":
            return None
        if kind in ("bool", "int", "float"):
            try:
                return self._constructor.construct_object(node)
            except ValueError:
                raise YamlProblem("not a number that can be read", *_place(node)) from None
        if kind in ("str", "timestamp"):
            return node.value
        raise YamlProblem("tags are not accepted", *_place(node))

    def _plain_tag(self, node: Node, kind: str) -> None:
        if node.tag != _TAG + kind:
            raise YamlProblem("tags are not accepted", *_place(node))


def _place(node: Node) -> tuple[int, int]:
    mark = node.start_mark
    return (mark.line + 1, mark.column + 1)
