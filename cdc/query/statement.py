"""What a query may say: one SELECT over tables of cdc.yaml, and nothing else.

The tree that is checked is DuckDB's own (``json_serialize_sql``), so what is checked is what
runs: no second parser can see another statement. Kinds of nodes, functions and tables are
allow-lists.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdc.errors import QueryError
from cdc.names import TableId
from cdc.query import functions

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Node = Mapping[str, Any]

_LONGEST: Final = 200_000
# DuckDB's parser takes forever on thousands of brackets that are left open.
_DEEPEST: Final = 1000
_EXPRESSIONS: Final = frozenset(
    (
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "TYPE",
        "WINDOW",
    )
)
_QUERIES: Final = frozenset(("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"))
_FROM: Final = frozenset(
    ("BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "SUBQUERY", "TABLE_FUNCTION")
)
_PARTS: Final = frozenset(
    (
        "ASCENDING",
        "DESCENDING",
        "DISTINCT_MODIFIER",
        "LIMIT_MODIFIER",
        "LIMIT_PERCENT_MODIFIER",
        "ORDER_DEFAULT",
        "ORDER_MODIFIER",
    )
)
# Database names that DuckDB keeps for itself.
_RESERVED_SOURCES: Final = frozenset(("system", "temp"))
_WHAT: Final = {
    "PARAMETER": "a parameter",
    "DEFAULT": "DEFAULT",
    "SHOW_REF": "SHOW, DESCRIBE or SUMMARIZE",
    "PIVOT": "PIVOT",
    "INSERT_QUERY_NODE": "INSERT",
    "UPDATE_QUERY_NODE": "UPDATE",
    "DELETE_QUERY_NODE": "DELETE",
}


class TableName(NamedTuple):
    """A replica as a query names it: ``source.schema.table``."""

    source: str
    id: TableId

    def __str__(self) -> str:
        return f"{self.source}.{self.id}"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that was checked.

    Args:
        sql: Its text, without what follows the statement (semicolon, comments).
        tables: The tables that it reads, each once.
    """

    sql: str
    tables: tuple[TableName, ...]


def check(connection: DuckDBPyConnection, sql: str, known: Collection[TableName]) -> Statement:
    """Check a statement; nothing of it runs.

    Args:
        connection: Any DuckDB connection; it only parses.
        sql: What the user typed.
        known: The tables of cdc.yaml.

    Raises:
        QueryError: ``sql_invalid`` (does not parse), ``sql_refused`` (not a single SELECT, a
            function or construct that is not allowed), ``table_unknown``.
    """
    if len(sql) > _LONGEST:
        raise QueryError("sql_invalid", f"the statement is longer than {_LONGEST} characters")
    if _depth(sql) > _DEEPEST:
        raise QueryError("sql_refused", "the statement is nested too deeply")
    tree = _parse(connection, sql)
    try:
        walk = _Walk(known)
        walk.query(tree, frozenset())
    except RecursionError:
        raise QueryError("sql_refused", "the statement is nested too deeply") from None
    text = sql[: _end(sql)]
    # Cutting the end off must not have changed what it says.
    if text != sql and _parse(connection, text) != tree:
        raise QueryError("sql_refused", "the end of the statement cannot be told")
    return Statement(text, tuple(walk.tables))


def _parse(connection: DuckDBPyConnection, sql: str) -> Node:
    import duckdb

    try:
        [(text,)] = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    except (duckdb.Error, UnicodeError):
        raise QueryError("sql_invalid", "the statement does not parse") from None
    try:
        answer = json.loads(text)
    except RecursionError:
        raise QueryError("sql_refused", "the statement is nested too deeply") from None
    if answer.get("error", True):
        if answer.get("error_type") == "not implemented":
            raise _refused("the statement is not a SELECT")
        raise QueryError(
            "sql_invalid", f"the statement does not parse: {answer.get('error_message')}"
        )
    statements = answer["statements"]
    if len(statements) != 1:
        raise _refused(f"{len(statements)} statements, where one SELECT is expected")
    if statements[0].get("named_param_map"):
        raise _refused("a parameter is not allowed")
    node: Node = statements[0]["node"]
    return node


def _refused(reason: str) -> QueryError:
    return QueryError(
        "sql_refused",
        f"cdc query takes a single SELECT over tables of cdc.yaml: {reason}",
        remedy="select … from source.schema.table",
    )


class _Walk:
    """Visits every node; collects tables, raises for what is not allowed."""

    def __init__(self, known: Collection[TableName]) -> None:
        self._known = known
        self.tables: dict[TableName, None] = {}

    def query(self, node: Node, scope: frozenset[str]) -> None:
        """A query with its common table expressions, which ``scope`` of outer ones extends."""
        kind = node.get("type")
        if kind not in _QUERIES:
            raise _not_allowed(kind)
        if kind == "RECURSIVE_CTE_NODE":
            scope |= {node["cte_name"].lower()}
        for entry in (node.get("cte_map") or {}).get("map", ()):
            body = entry["value"]
            # Only the rest of the map and the query itself see the name; a recursive one adds
            # its own above.
            self._any({k: v for k, v in body.items() if k != "query_node"}, scope)
            self.query(body["query_node"], scope)
            scope |= {entry["key"].lower()}
        self._children({k: v for k, v in node.items() if k != "cte_map"}, scope)

    def _any(self, value: Any, scope: frozenset[str]) -> None:
        if isinstance(value, list):
            for item in value:
                self._any(item, scope)
        elif isinstance(value, dict):
            kind = value.get("type")
            if "class" in value:
                self._expression(value, scope)
            elif not isinstance(kind, str):
                # Constants and their types, names, pairs: they hold no code of their own.
                self._children(value, scope)
            elif kind in _QUERIES or kind.endswith("_NODE"):
                self.query(value, scope)
            elif kind in _FROM:
                self._from(value, scope)
            elif kind in _PARTS:
                self._children(value, scope)
            else:
                raise _not_allowed(kind)

    def _children(self, node: Node, scope: frozenset[str]) -> None:
        for value in node.values():
            self._any(value, scope)

    def _expression(self, node: Node, scope: frozenset[str]) -> None:
        kind = node["class"]
        if kind not in _EXPRESSIONS:
            raise _not_allowed(kind)
        if kind in ("FUNCTION", "WINDOW"):
            _check_function(node, functions.EXPRESSIONS)
        elif kind == "TYPE" and (node.get("catalog") or node.get("schema")):
            raise _refused("a type of another schema is not allowed")
        self._children(node, scope)

    def _from(self, node: Node, scope: frozenset[str]) -> None:
        kind = node["type"]
        if kind == "BASE_TABLE":
            self._table(node, scope)
        elif kind == "TABLE_FUNCTION":
            function = node["function"]
            if function.get("class") != "FUNCTION":
                raise _not_allowed(function.get("class"))
            _check_function(function, functions.TABLES)
            self._children(function, scope)
            self._children({k: v for k, v in node.items() if k != "function"}, scope)
            return
        self._children(node, scope)

    def _table(self, node: Node, scope: frozenset[str]) -> None:
        path = tuple(node["qualified_name"]["path"])
        if path != tuple(
            p for p in (node["catalog_name"], node["schema_name"], node["table_name"]) if p
        ):
            raise _refused("a table's name cannot be told")
        if node.get("at_clause") is not None:
            raise _refused("AT (…) is not allowed")
        if len(path) == 1 and path[0].lower() in scope:
            return
        name = _known_table(path, self._known)
        if name.source in _RESERVED_SOURCES:
            raise QueryError(
                "source_name_reserved",
                f"a source named {name.source} cannot be queried: the name is DuckDB's own",
                table=str(name),
                remedy="rename the source in cdc.yaml",
            )
        for other in self.tables:
            if other != name and str(other).lower() == str(name).lower():
                raise _refused("two tables whose names differ by upper and lower case only")
        self.tables[name] = None


def _not_allowed(kind: Any) -> QueryError:
    return _refused(f"{_WHAT.get(kind, str(kind))} is not allowed")


def _check_function(node: Node, allowed: frozenset[str]) -> None:
    name = node["function_name"]
    path = node["qualified_name"]["path"]
    if (
        name.lower() not in allowed
        or node.get("schema")
        or node.get("catalog")
        or path != [name]
        or node.get("export_state")
    ):
        raise _refused(f"the function {'.'.join(path)} is not allowed")


def _known_table(path: tuple[str, ...], known: Collection[TableName]) -> TableName:
    written = ".".join(path)
    exact = [n for n in known if (n.source, *n.id) == path]
    folded = [n for n in known if tuple(p.lower() for p in (n.source, *n.id)) == _lower(path)]
    if exact or len(folded) == 1:
        return (exact or folded)[0]
    if folded:
        raise QueryError(
            "table_unknown",
            f"{written} may be several tables that differ by upper and lower case",
            remedy="one of " + ", ".join(sorted(map(str, folded))),
        )
    raise QueryError(
        "table_unknown",
        f"cdc.yaml has no table {written}",
        remedy=_nearest(path, known),
    )


def _lower(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.lower() for part in path)


def _nearest(path: tuple[str, ...], known: Collection[TableName]) -> str:
    names = {str(n): n for n in known}
    tails = [
        text for text, n in names.items() if _lower((n.source, *n.id))[-len(path) :] == _lower(path)
    ]
    near = tails or difflib.get_close_matches(".".join(path), list(names), 3, 0.6)
    if near:
        return "did you mean " + " or ".join(sorted(near)) + "? (source.schema.table)"
    some = sorted(names)[:10]
    return "the tables are " + ", ".join(some) + (", …" if len(names) > len(some) else "")


# --- What stands outside of quotes -----------------------------------------------------------


def _end(sql: str) -> int:
    """Offset of the first semicolon outside of quotes and comments, else the length."""
    for start, text in _tokens(sql):
        if text == ";":
            return start
    return len(sql)


def _depth(sql: str) -> int:
    depth = deepest = 0
    for _, text in _tokens(sql):
        if text in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif text in ")]}":
            depth -= 1
    return deepest


def _tokens(sql: str) -> Iterator[tuple[int, str]]:
    """Offset and first sign of what stands outside of quotes and comments."""
    at = 0
    while at < len(sql):
        skip = next((s for begins, s in _SKIPS if sql.startswith(begins, at)), None)
        end = skip(sql, at) if skip is not None else at
        if end == at:
            yield at, sql[at]
            end = at + 1
        at = end


def _quoted(quote: str) -> Callable[[str, int], int]:
    def skip(sql: str, at: int) -> int:
        escapes = quote == "'" and at > 0 and sql[at - 1] in "eE"
        at += 1
        while at < len(sql):
            if escapes and sql[at] == "\\":
                at += 2
            elif sql[at] != quote:
                at += 1
            elif sql.startswith(quote, at + 1):
                at += 2
            else:
                return at + 1
        return len(sql)

    return skip


def _line_comment(sql: str, at: int) -> int:
    ends = [i for i in (sql.find("\n", at), sql.find("\r", at)) if i >= 0]
    return min(ends, default=len(sql))


def _block_comment(sql: str, at: int) -> int:
    depth = 0
    while at < len(sql):
        if sql.startswith("/*", at):
            depth, at = depth + 1, at + 2
        elif sql.startswith("*/", at):
            depth, at = depth - 1, at + 2
            if depth == 0:
                return at
        else:
            at += 1
    return len(sql)


def _dollar(sql: str, at: int) -> int:
    close = sql.find("$", at + 1)
    tag = sql[at + 1 : close] if close >= 0 else "?"
    if tag and not tag.replace("_", "a").isalnum():
        return at
    end = sql.find(f"${tag}$", close + 1)
    return at if end < 0 else end + len(tag) + 2


_SKIPS: Final[tuple[tuple[str, Callable[[str, int], int]], ...]] = (
    ("'", _quoted("'")),
    ('"', _quoted('"')),
    ("--", _line_comment),
    ("/*", _block_comment),
    ("$", _dollar),
)
