"""Record byte streams of a real server: ``python -m tests.support.record_pgoutput CONNINFO``.

Each scenario is SQL and, written by hand beside it, what its stream must say. The script stores
the CopyData messages in tests/cases/wire/pgoutput/NAME.stream.json and the expectation, with what
only the server knows (xids, relation ids), in NAME.expected.json. CONNINFO names a superuser and a
database that may be filled with tables. Nothing here decodes pgoutput.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from cdc.names import TableId, quote_ident
from connectors.postgres.catalog import current_wal_lsn
from connectors.postgres.client import ReplicationClient, connect_sql
from connectors.postgres.publication import create_publication, drop_publication

FOLDER = Path(__file__).parents[1] / "cases" / "wire" / "pgoutput"
SLOT = PUBLICATION = "record_pgoutput"
UNSENT = {"unsent": True}
KEY = True  # a column of the replica identity


def relation(table, identity, *columns):
    """Columns as (name, type, typmod, in key); the wire has the type's modifier apart."""
    listed = [[name, kind.partition("(")[0], *rest] for name, kind, *rest in columns]
    return ["relation", "shop", table, identity, listed]


def insert(table, *new):
    return ["insert", table, list(new)]


def update(table, kind, old, new):
    return ["update", table, kind, old, new]


def delete(table, kind, old):
    return ["delete", table, kind, old]


TYPES = {
    "id": ("integer", "1"),
    "bo": ("boolean", "f"),
    "i2": ("smallint", "-32768"),
    "i8": ("bigint", "9223372036854775807"),
    "f4": ("real", "1.1"),
    "f8": ("double precision", "-0"),
    "nu": ("numeric", "NaN"),
    "n2": ("numeric(10,2)", "12.50"),
    "te": ("text", 'naïve "quotes" \\ and\ttab 😀'),
    "vc": ("character varying(10)", ""),
    "bc": ("character(5)", "ab   "),
    "by": ("bytea", "\\x00ff10"),
    "da": ("date", "0044-03-15 BC"),
    "ts": ("timestamp without time zone", "2024-02-29 23:59:59.999999"),
    "tz": ("timestamp with time zone", "2024-01-01 00:00:00+00"),
    "uu": ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "js": ("json", '{"a": 1,  "a": [null, 2.50]}'),
    "jb": ("jsonb", '{"a": [null, 2.50]}'),
}
TYPMODS = {"n2": 655366, "vc": 14, "bc": 9}
BIG = "".join(f"{n:06d}" for n in range(600))  # 3,600 characters: stored out of line
SET_BIG = """(SELECT string_agg(lpad(n::text, 6, '0'), '' ORDER BY n)
              FROM generate_series(0, 599) n)"""
ODD = '"Odd ""Näme"""'


def _types_scenario():
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    values = ", ".join(
        "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'" for _, text in TYPES.values()
    )
    return {
        "tables": ["types"],
        "setup": [f"CREATE TABLE types ({columns}, PRIMARY KEY (id))"],
        "transactions": [
            (
                [f"INSERT INTO types VALUES ({values})", "INSERT INTO types VALUES (2)"],
                [
                    relation(
                        "types",
                        "d",
                        *((n, k, TYPMODS.get(n, -1), n == "id") for n, (k, _) in TYPES.items()),
                    ),
                    insert("types", *(text for _, text in TYPES.values())),
                    insert("types", "2", *[None] * (len(TYPES) - 1)),
                ],
            )
        ],
    }


def _toast_scenario():
    columns = [("id", "integer", -1), ("small", "text", -1), ("big", "text", -1)]
    default = relation("docs", "d", *((*c, c[0] == "id") for c in columns))
    full = relation("docs", "f", *((*c, KEY) for c in columns))
    return {
        "tables": ["docs"],
        "setup": [
            "CREATE TABLE docs (id integer PRIMARY KEY, small text, big text)",
            "ALTER TABLE docs ALTER COLUMN big SET STORAGE EXTERNAL",
            f"INSERT INTO docs VALUES (1, 'a', {SET_BIG})",
        ],
        "transactions": [
            (
                ["UPDATE docs SET small = 'b'"],
                [default, update("docs", "", None, ["1", "b", UNSENT])],
            ),
            (
                ["UPDATE docs SET id = 2"],
                [update("docs", "K", ["1", None, None], ["2", "b", UNSENT])],
            ),
            (
                [
                    "ALTER TABLE docs REPLICA IDENTITY FULL",
                    "UPDATE docs SET small = 'c'",
                    "DELETE FROM docs",
                ],
                [
                    full,
                    update("docs", "O", ["2", "b", BIG], ["2", "c", UNSENT]),
                    delete("docs", "O", ["2", "c", BIG]),
                ],
            ),
        ],
    }


SCENARIOS: dict[str, Any] = {
    "types": _types_scenario(),
    "toast": _toast_scenario(),
    "changes": {
        "tables": ["pairs"],
        "setup": ["CREATE TABLE pairs (v text, b integer, a text, PRIMARY KEY (a, b))"],
        "transactions": [
            (
                [
                    "INSERT INTO pairs VALUES ('x', 1, 'k'), ('y', 2, 'k')",
                    "UPDATE pairs SET v = 'z' WHERE b = 1",
                    "SAVEPOINT s",
                    "INSERT INTO pairs VALUES ('gone', 3, 'k')",
                    "ROLLBACK TO s",
                    "UPDATE pairs SET b = 9 WHERE b = 2",
                    "DELETE FROM pairs WHERE b = 9",
                ],
                [
                    # Columns stand in the table's order, whatever the key's order is.
                    relation(
                        "pairs",
                        "d",
                        ("v", "text", -1, False),
                        ("b", "integer", -1, KEY),
                        ("a", "text", -1, KEY),
                    ),
                    insert("pairs", "x", "1", "k"),
                    insert("pairs", "y", "2", "k"),
                    update("pairs", "", None, ["z", "1", "k"]),
                    update("pairs", "K", [None, "2", "k"], ["y", "9", "k"]),
                    delete("pairs", "K", [None, "9", "k"]),
                ],
            ),
            (["CREATE TABLE elsewhere (id integer)"], None),
            (["UPDATE pairs SET v = NULL"], [update("pairs", "", None, [None, "1", "k"])]),
        ],
    },
    "identity_index": {
        "tables": ["codes"],
        "setup": [
            "CREATE TABLE codes (id integer PRIMARY KEY, code text NOT NULL)",
            "CREATE UNIQUE INDEX codes_code ON codes (code)",
            "ALTER TABLE codes REPLICA IDENTITY USING INDEX codes_code",
        ],
        "transactions": [
            (
                [
                    "INSERT INTO codes VALUES (1, 'a')",
                    "UPDATE codes SET id = 2",
                    "UPDATE codes SET code = 'b'",
                    "DELETE FROM codes",
                ],
                [
                    relation("codes", "i", ("id", "integer", -1, False), ("code", "text", -1, KEY)),
                    insert("codes", "1", "a"),
                    update("codes", "", None, ["2", "a"]),
                    update("codes", "K", [None, "a"], ["2", "b"]),
                    delete("codes", "K", [None, "b"]),
                ],
            )
        ],
    },
    "schema_changes": {
        "tables": ['Odd "Näme"'],
        "setup": [f"CREATE TABLE {ODD} (id integer PRIMARY KEY)"],
        "transactions": [
            (
                [f"INSERT INTO {ODD} VALUES (1)"],
                [
                    relation('Odd "Näme"', "d", ("id", "integer", -1, KEY)),
                    insert('Odd "Näme"', "1"),
                ],
            ),
            (
                [
                    f'ALTER TABLE {ODD} ADD "Größe" numeric(6,3)',
                    f"INSERT INTO {ODD} VALUES (2, 1.5)",
                    "CREATE TYPE mood AS ENUM ('sad', 'happy')",
                    f"ALTER TABLE {ODD} ADD m mood",
                    f"INSERT INTO {ODD} VALUES (3, NULL, 'happy')",
                ],
                [
                    relation(
                        'Odd "Näme"',
                        "d",
                        ("id", "integer", -1, KEY),
                        ("Größe", "numeric(6,3)", 393223, False),
                    ),
                    insert('Odd "Näme"', "2", "1.500"),
                    ["type", "shop", "mood"],
                    relation(
                        'Odd "Näme"',
                        "d",
                        ("id", "integer", -1, KEY),
                        ("Größe", "numeric(6,3)", 393223, False),
                        ("m", "shop.mood", -1, False),
                    ),
                    insert('Odd "Näme"', "3", None, "happy"),
                ],
            ),
        ],
    },
    "truncate": {
        "tables": ["parents", "children"],
        "setup": [
            "CREATE TABLE parents (id integer PRIMARY KEY)",
            "CREATE TABLE children (id integer PRIMARY KEY, p integer REFERENCES parents)",
        ],
        "transactions": [
            (
                ["TRUNCATE children"],
                [
                    relation(
                        "children", "d", ("id", "integer", -1, KEY), ("p", "integer", -1, False)
                    ),
                    ["truncate", ["children"], False, False],
                ],
            ),
            (
                ["TRUNCATE parents RESTART IDENTITY CASCADE"],
                [
                    relation("parents", "d", ("id", "integer", -1, KEY)),
                    # Again: the first TRUNCATE made the server forget that it was sent.
                    relation(
                        "children", "d", ("id", "integer", -1, KEY), ("p", "integer", -1, False)
                    ),
                    ["truncate", ["parents", "children"], True, True],
                ],
            ),
        ],
    },
    "origin_and_messages": {
        "tables": ["notes"],
        "setup": [
            "CREATE TABLE notes (id integer PRIMARY KEY)",
            "SELECT pg_replication_origin_create('elsewhere') WHERE NOT EXISTS "
            "(SELECT FROM pg_replication_origin WHERE roname = 'elsewhere')",
            "SELECT pg_replication_origin_session_setup('elsewhere')",
        ],
        "transactions": [
            (
                [
                    "SELECT pg_replication_origin_xact_setup('0/ABC', now())",
                    "INSERT INTO notes VALUES (1)",
                    "SELECT pg_logical_emit_message(true, 'within', 'a b')",
                ],
                [
                    ["origin", 0xABC, "elsewhere"],
                    relation("notes", "d", ("id", "integer", -1, KEY)),
                    insert("notes", "1"),
                    ["message", True, "within", "a b"],
                ],
            ),
            (
                ["SELECT pg_replication_origin_session_reset()"],
                None,
            ),
            (["SELECT pg_logical_emit_message(false, 'alone', '')"], "message alone"),
        ],
    },
}


def record(conninfo, name, scenario):
    """Run one scenario and write its two files."""
    with connect_sql(conninfo) as sql, ReplicationClient(conninfo) as client:
        sql.execute("DROP SCHEMA IF EXISTS shop CASCADE")
        sql.execute("CREATE SCHEMA shop")
        sql.execute("SET search_path TO shop, pg_catalog")
        for statement in scenario["setup"]:
            sql.execute(statement.encode())
        drop_publication(sql, PUBLICATION)
        create_publication(
            sql, PUBLICATION, [TableId("shop", table) for table in scenario["tables"]]
        )
        start = client.create_slot(SLOT, False, temporary=True).consistent_point
        expected: list[Any] = []
        for statements, messages in scenario["transactions"]:
            with sql.transaction():
                for statement in statements:
                    sql.execute(statement.encode())
                xid = _scalar(sql, "SELECT pg_current_xact_id_if_assigned()::text")
            if messages == "message alone":
                expected.append(["message", False, "alone", ""])
            elif messages is not None:
                expected += [["begin", int(xid)], *messages, ["commit"]]
        names = {c[1] for m in expected if m[0] == "relation" for c in m[4]}
        types = {name: _oid(sql, "regtype", name) for name in sorted(names)}
        relids = {name: _oid(sql, "regclass", quote_ident(name)) for name in scenario["tables"]}
        end = current_wal_lsn(sql)
        client.start_replication(SLOT, start, PUBLICATION, messages=True)
        stream = []
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            stream += client.read(0.2)
            if stream and stream[-1][:1] == b"k" and int.from_bytes(stream[-1][1:9], "big") >= end:
                break
        else:
            raise SystemExit(f"{name}: the stream did not reach the end of the scenario")
        version = client.server_version
    FOLDER.mkdir(parents=True, exist_ok=True)
    _write(
        FOLDER / f"{name}.stream.json",
        {"server_version": version, "start": start, "copydata": [data.hex() for data in stream]},
    )
    _write(
        FOLDER / f"{name}.expected.json", {"relids": relids, "types": types, "messages": expected}
    )


def _oid(sql, kind, name):
    return _scalar(sql, f"SELECT %s::{kind}::oid::bigint", name)


def _scalar(sql, query, *parameters):
    row = sql.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return row[0]


def _write(path, value):
    # One message a line, so that a difference can be read.
    lines = [f"{json.dumps(k)}: {_lines(v)}" for k, v in value.items()]
    path.write_text("{" + ",\n".join(lines) + "}\n")


def _lines(value):
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"


def main():
    conninfo = conninfo_to_dict(sys.argv[1])
    for name, scenario in SCENARIOS.items():
        record(conninfo, name, scenario)
        print("recorded", name)


if __name__ == "__main__":
    main()
