"""Names and patterns of source tables, as cdc.yaml and commands spell them. Pure.

``schema.table``, both as the catalog spells them. Outside of double quotes ``*`` stands for any
number of characters and ``?`` for one; within them everything stands for itself, a double quote
being written twice. A part may be written in pieces: ``"a*"_?`` is ``a*_`` and one character.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from cdc.names import TableId

_LONGEST: Final = 63
_QUOTED: Final = re.compile(r'"((?:[^"]|"")+)"')
_PLAIN: Final = re.compile(r'[^".]+')
_WILD: Final = "*?"
#: What other languages of patterns have; taken for themselves, they would match nothing.
_FOREIGN: Final = "%[]{}!"


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A name of cdc.yaml: of one table, or of all that match it.

    Args:
        text: As it is spelled.
        schema: Of the schema's name, for ``re.fullmatch``.
        table: Of the table's name, likewise.
        id: The table, if the name has no wildcard.
        exceptions: Tables that do not match although they look so.
    """

    text: str
    schema: str
    table: str
    id: TableId | None
    exceptions: tuple[TablePattern, ...] = ()

    def matches(self, id: TableId) -> bool:
        """Whether a table is meant."""
        return (
            re.fullmatch(self.schema, id.schema) is not None
            and re.fullmatch(self.table, id.table) is not None
            and not any(other.matches(id) for other in self.exceptions)
        )

    def to_json(self) -> dict[str, Any]:
        """As commands carry it."""
        return {"name": self.text, "except": [other.text for other in self.exceptions]}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave.

        Raises:
            ValueError: It is none.
        """
        return cls.parse(raw["name"], raw["except"])

    @classmethod
    def parse(cls, text: str, exceptions: Iterable[str] = ()) -> Self:
        """Read a name or pattern.

        Args:
            text: ``schema.table``.
            exceptions: Names and patterns of tables that are not meant.

        Raises:
            ValueError: It is not two parts, or no name of Postgres could match it.
        """
        parts = _split(text)
        if parts is None or len(parts) != 2:
            raise ValueError(
                "a table is given as schema.table; a part with a dot, * or ? that is meant as it "
                'is stands in double quotes: "my.schema".table'
            )
        schema, table = parts
        exact = None
        if not (schema.wild or table.wild):
            exact = TableId(schema.literal, table.literal)
        others = tuple(cls.parse(other) for other in exceptions)
        return cls(text, schema.regex, table.regex, exact, others)


def parse_table_name(text: str) -> TableId:
    """One table's name, ``schema.table``.

    Raises:
        ValueError: It is none, or a pattern.
    """
    id = TablePattern.parse(text).id
    if id is None:
        raise ValueError("it is a pattern, not the name of one table")
    return id


@dataclass(slots=True)
class _Part:
    """A schema or table as it is read."""

    literal: str = ""
    glob: str = ""
    wild: bool = False

    @property
    def regex(self) -> str:
        return fnmatch.translate(self.glob)

    def quoted(self, text: str) -> None:
        self.literal += text
        self.glob += re.sub(r"([*?[])", r"[\1]", text)

    def plain(self, text: str) -> None:
        self.wild = self.wild or any(sign in text for sign in _WILD)
        self.literal += re.sub(r"[*?]", "", text)
        self.glob += text.replace("[", "[[]")


def _split(text: str) -> list[_Part] | None:
    """The parts between dots; None: it is not written as it should be."""
    parts: list[_Part] = [_Part()]
    plain: list[str] = []
    at = 0
    while at < len(text):
        if quoted := _QUOTED.match(text, at):
            parts[-1].quoted(quoted[1].replace('""', '"'))
            at = quoted.end()
        elif found := _PLAIN.match(text, at):
            parts[-1].plain(found[0])
            plain.append(found[0])
            at = found.end()
        elif text[at] == ".":
            parts.append(_Part())
            at += 1
        else:
            return None
    if not all(part.glob for part in parts):
        return None
    for part in parts:
        _check_name(part.literal, least=0 if part.wild else 1)
    wild = any(part.wild for part in parts)
    foreign = [sign for sign in _FOREIGN if any(sign in piece for piece in plain)]
    if foreign and (wild or "%" in foreign):
        raise ValueError(
            f"{' and '.join(foreign)} is no wildcard here: * stands for any characters, ? for one; "
            "what is meant as it is stands in double quotes"
        )
    return parts


def _check_name(text: str, least: int) -> None:
    if not least <= len(text.encode()) <= _LONGEST or "\0" in text:
        raise ValueError("a Postgres name has 1 to 63 bytes")
