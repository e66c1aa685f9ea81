"""The cdc.yaml of one run of a case."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from cdc.names import TableId
from tests.cases.case import PUBLICATION, Case

PROJECT: Final = "cases"
#: More than one, so that an order across partitions would show.
_PARTITIONS: Final = 2


def write_project(
    folder: Path,
    *,
    source: str,
    conninfo: Mapping[str, Any],
    bootstrap: str,
    prefix: str,
    lake: Path,
    tables: Sequence[str],
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
    path.write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def chosen_tables(case: Case, conninfo: Mapping[str, Any]) -> list[str]:
    """What cdc.yaml says of tables: those of the case, or patterns if some come later.

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
    published = {TableId(_text(schema), _text(table)) for schema, table in found}
    wanted = [table.id for table in case.tables]
    if all(id in published for id in wanted):
        return [f"{_quoted(id.schema)}.{_quoted(id.table)}" for id in wanted]
    return [f"{_quoted(schema)}.*" for schema in dict.fromkeys(id.schema for id in wanted)]


def _text(name: str | bytes) -> str:
    # Of a database without an encoding the driver gives bytes.
    return name.decode() if isinstance(name, bytes) else name


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
