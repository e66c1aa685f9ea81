"""Every type that a server knows, with literals of it. For tests."""

from dataclasses import dataclass

import psycopg

#: Literals by type name; for the others GENERAL are tried.
LITERALS = {
    "bool": ["t", "f"],
    "int2": ["-32768", "32767"],
    "int4": ["-2147483648", "2147483647"],
    "int8": ["-9223372036854775808", "9007199254740993"],
    "oid": ["0", "4294967295"],
    "float4": ["-0", "NaN", "Infinity", "3.4028235e38", "1e-45", "0.1", "16777217", "123456.7"],
    "float8": [
        "-0", "NaN", "-Infinity", "1.7976931348623157e308", "5e-324", "0.1", "1e23", "1e22",
        "9007199254740993", "123456789012345", "1234567890123456", "0.0001", "0.00001",
        "2.2250738585072014e-308", "4.9406564584124654e-324", "8.41e21", "-9e15",
    ],
    "numeric": ["NaN", "Infinity", "-Infinity", "1.500", "-0.00", "1e-20", "9" * 200 + ".7"],
    "money": ["-92233720368547758.08", "1234.5"],
    "char": ["a", "\\", ""],
    "name": ["", "a b", 'q"uote'],
    "text": ["", "NULL", "null", " h ", 'd"e', "f\\g", "{c}", "a,b", "é😀", "\t\n\v\x01"],
    "varchar": ["", "ab  ", "\\N"],
    "bpchar": ["", "ab  "],
    "bytea": ["\\x", "\\x00ff5c22"],
    "date": ["2024-02-29", "infinity", "-infinity", "0044-03-15 BC", "5874897-12-31", "0001-01-01"],
    "time": ["24:00:00", "00:00:00", "12:34:56.789012"],
    "timetz": ["24:00:00+15:59", "12:34:56.7-05:30:15"],
    "timestamp": [
        "2024-02-29 23:59:59.1", "infinity", "-infinity", "4713-01-01 00:00:00 BC",
        "294276-12-31 23:59:59.999999", "0001-01-01", "9999-12-31 23:59:59.999999",
    ],
    "timestamptz": [
        "2024-02-29 23:59:59.12+05:45", "infinity", "-infinity", "0044-03-15 12:00:00+00 BC",
        "10000-01-01 00:00:00+00", "1889-12-31 23:40:28+00",
    ],
    "interval": [
        "1 year -2 mons +3 days -04:05:06.789012", "48 hours", "2 days", "0",
        "178000000 years 12 days 01:02:03", "1 mon -1 day +00:00:00.000001",
    ],
    "bit": ["1", "0"],
    "varbit": ["", "0101"],
    "inet": ["192.0.2.7", "192.0.2.7/25", "2001:db8::1"],
    "cidr": ["10/8", "::/0"],
    "macaddr": ["08:00:2B:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "uuid": ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"],
    "json": ['{"a":  1.0, "a": "\\u0000"}', " null", '"\\ud83d"', "[1e400]"],
    "jsonb": ['{"b": 1.10, "a": "\\u00e9\\"", "": null}', "null", "[12345678901234567890.10]"],
    "xml": ["<x a='\"'>&amp;</x>", ""],
    "jsonpath": ['$."a b"[*] ? (@ > 1)'],
    "point": ["(0.1,1e-7)", "(Infinity,NaN)"],
    "lseg": ["[(1,2),(3,4)]"],
    "path": ["[(1,2),(3,4)]", "((1,2))"],
    "box": ["(3,3),(2,2)"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "line": ["{1,-1,0}"],
    "circle": ["<(1,2),3>"],
    "tsvector": ["'a' 'b c':1A,2 'd''e'", ""],
    "tsquery": ["'a' & !'b c':*"],
    "int2vector": ["1 2 3", ""],
    "oidvector": ["1 4294967295"],
    "pg_lsn": ["16/B374D848"],
    "txid_snapshot": ["10:20:10,14,15"],
    "pg_snapshot": ["10:20:10,14,15"],
    "xid8": ["18446744073709551615"],
    "tid": ["(42,7)"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "numrange": ["[1.50,)"],
    "tsrange": ['["2024-01-01 00:00","2024-01-02 00:00")'],
    "tstzrange": ['["2024-01-01 00:00+02",infinity]'],
    "daterange": ["[2024-01-01,2024-02-01)"],
    "int8range": ["[1,9223372036854775807)"],
    "int4multirange": ["{[1,2),[5,6)}", "{}"],
    "tstzmultirange": ['{["2024-01-01 00:00+02",infinity)}'],
    "aclitem": ["=r/postgres"],
    "refcursor": ["c"],
    "regclass": ["pg_class"],
    "regproc": ["version"],
    "regprocedure": ["version()"],
    "regoper": ["pg_catalog.||/"],
    "regoperator": ["+(integer,integer)"],
    "regtype": ["integer", "pg_class[]"],
    "regrole": ["postgres"],
    "regnamespace": ["pg_catalog"],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regcollation": ['"C"'],
    "gtsvector": [],
    "ltree": ["Top.Science", ""],
    "hstore": ['a=>1, "b c"=>NULL, "q\\"q"=>"x=>y"', ""],
    "citext": ["MiXed"],
    "positive": ["7"],
    "price": ["7.125"],
    "price2": ["7.125"],
    "tags": ["{a,NULL}", "{}"],
    "mood": ["sad", 'very "happy", {ok}', ""],
    "pair": ['(1,"x""y")', "(,)"],
    "textrange": ["[a,b)"],
    "time_stamp": ["2024-01-01 00:00:00+02"],
    "yes_or_no": ["YES"],
    "pg_am": ['(1,"a b",,)'],
}  # fmt: skip
GENERAL = ["", "1", "a", "0", "(1,1)", "()", "{}", "(,)", "pg_catalog", "postgres", "english"]
#: Types that take no input of a person.
WITHOUT_INPUT = {
    "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "gtsvector",
    "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "ltree_gist", "ghstore",
}  # fmt: skip
EXTENSIONS = ("citext", "hstore", "ltree")
#: Types of the tests' own, of every kind.
OWN = """
create domain positive as int check (value > 0);
create domain price as numeric(6,2);
create domain price2 as price check (value >= 0);
create domain tags as text[];
create type mood as enum ('sad', 'very "happy", {ok}', '');
create type pair as (a int, b text);
create type textrange as range (subtype = text)
"""


@dataclass(frozen=True)
class ServerType:
    """A type that a column can have.

    Args:
        sql: As it stands in a statement.
        name: Without its schema.
        array: The same for its array type; None: it has none.
    """

    sql: str
    name: str
    array: str | None


def server_types(connection):
    """Every type that a column can have, rows of tables left out but for one, arrays too."""
    found = connection.execute(
        "select format_type(t.oid, -1), t.typname::text,"
        " format_type(nullif(t.typarray, 0), -1) from pg_type t"
        " left join pg_class c on c.oid = t.typrelid"
        " where t.typisdefined and t.typtype <> 'p' and t.typoutput <> 'array_out'::regproc"
        " and (c.oid is null or c.relkind = 'c' or c.relname = 'pg_am')"
        " or t.typtype = 'd' order by t.oid"
    ).fetchall()
    return [ServerType(*row) for row in found]


def create_types(connection):
    """Extensions, and types of every kind; then all that the server knows."""
    for extension in EXTENSIONS:
        connection.execute(f"create extension {extension}".encode())
    for statement in OWN.strip().split(";\n"):
        connection.execute(statement.encode())
    return server_types(connection)


def fill(writer, kind, number):
    """A table of one type and its array; the literals that the server took."""
    array = kind.array or "text[]"
    writer.execute(f"create table t{number} (id serial primary key, v {kind.sql}, a {array})")
    taken = []
    for literal in LITERALS.get(kind.name, GENERAL):
        try:
            writer.execute(f"insert into t{number} (v) values (%s)", (literal,))
        except psycopg.Error:
            assert kind.name not in LITERALS, (kind, literal)
        else:
            taken.append(literal)
    writer.execute(f"insert into t{number} (v) values (null)")
    if taken and kind.array:
        lists: tuple[list[object], ...] = (
            [*taken, None],
            [],
            [[None, v] for v in taken],
            [[[taken[0]]], [[None]]],
        )
        for values in lists:
            writer.execute(f"insert into t{number} (a) values (%s::text[]::{array})", (values,))
        if kind.name not in ("int2vector", "oidvector"):  # those pass for arrays
            fill = f"array_fill(%s::{kind.sql}, '{{2}}', '{{-3}}')"
            writer.execute(f"insert into t{number} (a) values ({fill})", (taken[0],))
    return taken
