"""Names that we derive: of topics, folders, slots, columns… Pure; see docs/formats.md.

Nobody parses one back, for the control record is the mapping; but a derived table's column tells
which one of the source it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_PLAIN_LOWER = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_")
#: Folders that Delta takes for a part of the table above them.
_DELTAS_OWN: Final = frozenset({"_delta_log", "_samples"})
#: Signs of a name that mean something else in cdc.yaml, outside of quotes.
_NEEDS_QUOTES: Final = frozenset('."*?%')
_MAX_TOPIC = 200
_KEPT_OF_LONG_TOPIC = 120


class TableId(NamedTuple):
    """A source table's schema and name, as Postgres spells them.

    As text it is spelled as in cdc.yaml, so that no two tables look alike.
    """

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{_spelled(self.schema)}.{_spelled(self.table)}"


def _spelled(name: str) -> str:
    return name if _NEEDS_QUOTES.isdisjoint(name) else quote_ident(name)


def _escape(name: str, plain: frozenset[int]) -> str:
    return "".join(chr(b) if b in plain else f"-{b:02x}" for b in name.encode())


def topic_name(
    prefix: str, source: str, schema: str, table: str, load: int, *, hashed: bool = False
) -> str:
    """The topic of one load of a table.

    Args:
        prefix: ``log.topic_prefix``, taken as it is.
        source: The source's name in cdc.yaml.
        schema: The table's schema.
        table: The table's name.
        load: 1 for the first load, which has no suffix.
        hashed: Ask for the hashed form, when the broker reports a collision (it treats
            ``.`` and ``_`` alike).
    """
    name = f"{prefix}{source}.{_escape(schema, _PLAIN)}.{_escape(table, _PLAIN)}"
    if load >= 2:
        name += f"--{load}"
    if hashed or len(name) > _MAX_TOPIC:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{name[:_KEPT_OF_LONG_TOPIC]}--x{digest}"
    return name


def spool_topic(
    prefix: str, source: str, schema: str, table: str, load: int, *, hashed: bool = False
) -> str:
    """The topic where the events of a table wait while it is loaded; arguments as above.

    It has four parts, so no table's topic, which has three, is ever called so.
    """
    return topic_name(prefix, f"{source}.__spool", schema, table, load, hashed=hashed)


def control_topic(prefix: str, source: str) -> str:
    """The compacted topic of a source's control records."""
    return f"{prefix}{source}.__cdc"


def frontier_topic(prefix: str, source: str) -> str:
    """The topic with one record per Kafka transaction of capture."""
    return f"{prefix}{source}.__frontier"


def lake_folder(lake_path: str, source: str, schema: str, table: str) -> str:
    """The folder of a replica; upper case is escaped for file systems that fold case."""
    return "/".join((lake_path.rstrip("/"), source, _folder(schema), _folder(table)))


def _folder(name: str) -> str:
    escaped = _escape(name, _PLAIN_LOWER)
    # No other name has its underscore escaped, so it stays the only one of its folder.
    return f"-5f{escaped[1:]}" if escaped in _DELTAS_OWN else escaped


def default_slot(project: str, source: str) -> str:
    """The replication slot when cdc.yaml names none."""
    return f"cdc_{project}_{source}"


def default_publication(project: str, source: str) -> str:
    """The publication when cdc.yaml names none."""
    return f"cdc_{project}_{source}"


def capture_transactional_id(project: str, source: str) -> str:
    """Kafka transactional id of a source's capture process."""
    return f"{project}.{source}.capture"


def snapshot_transactional_id(project: str, source: str, worker: int) -> str:
    """Kafka transactional id of a snapshot worker, numbered from 1."""
    return f"{project}.{source}.snap.{worker}"


#: Snapshot workers are numbered 1 to this; all are fenced when capture starts.
MAX_SNAPSHOT_WORKERS = 16


#: Columns that Delta and Spark add to a table for themselves while they read or merge it: one of
#: the table's own by such a name is taken for theirs, or makes it ambiguous. Those in lower case
#: are meant in any; the others do no harm in another, in which they are names that people give.
RESERVED_COLUMNS: Final = frozenset(
    (
        # Of reading files and their deletion vectors.
        "__delta_internal_is_row_deleted",
        "__delta_internal_row_index",
        "_metadata",
        "_tmp_metadata_row_index",
        # Of taking rows away, by MERGE or else.
        "_file_name_",
        "_row_dropped_",
        "_row_id_",
        "_source_row_present_",
        "_target_row_present_",
        "deletionVectorId",
        "dvFilePath",
        "filePath",
        "rowIndexCol",
    )
)

#: Between a column's name and its bytes.
_ESCAPED: Final = re.compile(r"(.*)~((?:[0-9a-fA-F]{2})+)", re.DOTALL)


def derived_columns(names: Iterable[str]) -> dict[str, str]:
    """Names of a derived table's columns, which Delta and Spark tell apart: they know no case.

    The first of those that differ by case only keeps its name, and so does every other column
    but for those that Delta and Spark need the names of.

    Args:
        names: Of source columns, each once, older ones first.

    Returns:
        Source name to derived name; no two derived names differ by case only.
    """
    taken: set[str] = set()
    derived = {}
    for name in names:
        folded = _without_case(name)
        reserved = name in RESERVED_COLUMNS or folded in RESERVED_COLUMNS
        if reserved or folded in taken or _looks_escaped(name):
            derived[name] = f"{name}~{name.encode().hex()}"
        else:
            derived[name] = name
            taken.add(folded)
    return derived


def source_column(derived: str) -> str:
    """The source's name of a derived table's column: the inverse of ``derived_columns``."""
    found = _ESCAPED.fullmatch(derived)
    if found is not None and found[1].encode().hex() == found[2]:
        return found[1]
    return derived


def _looks_escaped(name: str) -> bool:
    """Whether a name differs from an escaped one by case only, if at all."""
    found = _ESCAPED.fullmatch(name)
    if found is None:
        return False
    inner = bytes.fromhex(found[2]).decode(errors="replace")
    return _without_case(inner) == _without_case(found[1])


def _without_case(name: str) -> str:
    """Equal for names that some engine takes for the same."""
    # Java compares sign by sign, by either case; Python lowers a dotted I to two signs.
    upper = (sign.upper() if len(sign.upper()) == 1 else sign for sign in name)
    return "".join(upper).lower().replace("i\u0307", "i")


def quote_ident(name: str) -> str:
    """An SQL identifier in quotes, for replication commands, which take no parameters."""
    if "\0" in name:
        raise ValueError("an identifier cannot hold a zero byte")
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """An SQL string in quotes, for replication commands (standard_conforming_strings is on)."""
    if "\0" in text:
        raise ValueError("a string cannot hold a zero byte")
    return "'" + text.replace("'", "''") + "'"
