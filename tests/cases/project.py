"""The cdc.yaml of one run of a case."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from cdc.names import TableId, quote_ident
from tests.cases.case import PUBLICATION, Case, Expected
from tests.cases.yamltext import yaml_text

PROJECT: Final = "cases"
#: More than one, so that an order across partitions would show.
_PARTITIONS: Final = 2
_HAVE_ENDS: Final = ("date", "timestamp", "timestamptz", "numeric")
_BEYOND: Final = re.compile(r"NaN|-?[Ii]nfinity|\d{5,}-\d\d-\d\d.*|.* BC")


def write_project(
    folder: Path,
    *,
    source: str,
    conninfo: Mapping[str, Any],
    bootstrap: str,
    prefix: str,
    lake: Path,
    tables: Sequence[dict[str, Any]],
) -> Path:
    """Write cdc.yaml for a source; its path."""
    password = folder / "password"
    password.write_text(conninfo.get("password") or "")
    password.chmod(0o600)
    path = folder / "cdc.yaml"
    # JSON is YAML, whatever the names of tables are.
    config = {
        "project": PROJECT,
        "log": {
            "bootstrap_servers": bootstrap,
            "topic_prefix": prefix,
            "partitions": _PARTITIONS,
        },
        "lake": {"path": str(lake)},
        "sources": {
            source: {
                "kind": "postgres",
                "host": conninfo["host"],
                "port": conninfo["port"],
                "database": conninfo["dbname"],
                "user": conninfo["user"],
                "password": {"file": "./password"},
                "publication": {"name": PUBLICATION, "manage": False},
                # Most of a small load is the start of a worker.
                "snapshot": {"workers": 1},
                "tables": list(tables),
            }
        },
    }
    path.write_text(yaml_text(config), encoding="utf-8")
    return path


def chosen_tables(case: Case, conninfo: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What cdc.yaml says of tables: those of the case, or patterns if some come later.

    A column that has to show values that its Delta type cannot hold is declared to be text, as
    somebody who needs them exactly would do.

    Args:
        case: The case.
        conninfo: Of its database, after setup.
    """
    with psycopg.connect(**conninfo, client_encoding="UTF8") as connection:
        found = connection.execute(
            "select schemaname::text, tablename::text from pg_publication_tables"
            " where pubname = %s",
            (PUBLICATION,),
        ).fetchall()
        columns = connection.execute(
            "with recursive below (type, base) as (select oid, oid from pg_type union all"
            " select b.type, t.typbasetype from below b join pg_type t on t.oid = b.base"
            " where t.typtype = 'd')"
            " select n.nspname::text, c.relname::text, a.attname::text from pg_attribute a"
            " join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace"
            " join below b on b.type = a.atttypid"
            " where a.attnum > 0 and b.base = any(%s::regtype[])",
            (list(_HAVE_ENDS),),
        ).fetchall()
    published = {TableId(_text(schema), _text(table)) for schema, table in found}
    with_ends = {(TableId(_text(s), _text(t)), _text(column)) for s, t, column in columns}
    wanted = [table.id for table in case.tables]
    if not all(id in published for id in wanted):
        schemas = dict.fromkeys(id.schema for id in wanted)
        return [{"name": f"{quote_ident(schema)}.*"} for schema in schemas]
    return [
        {
            "name": str(table.id),
            "types": {c: "string" for c in _beyond(table) if (table.id, c) in with_ends},
        }
        for table in case.tables
    ]


def _beyond(table: Expected) -> list[str]:
    """Columns with values beyond what Delta's dates, timestamps and decimals can hold."""
    rows = [json.loads(row) for row in table.rows or ()]
    return [
        name
        for i, name in enumerate(table.columns)
        if any(isinstance(row[i], str) and _BEYOND.fullmatch(row[i]) for row in rows)
    ]


def _text(name: str | bytes) -> str:
    # Of a database without an encoding the driver gives bytes.
    return name.decode() if isinstance(name, bytes) else name
