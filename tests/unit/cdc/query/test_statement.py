"""Only a single SELECT over tables of cdc.yaml passes, whatever its writing."""

import duckdb
import pytest

from cdc.errors import QueryError
from cdc.names import TableId
from cdc.query import functions
from cdc.query.statement import TableName, check

ORDERS = TableName("shop", TableId("public", "orders"))
CUSTOMERS = TableName("shop", TableId("public", "customers"))
UPPER = TableName("shop", TableId("public", "Orders"))
ODD = TableName("shop", TableId("my.schema", 'a "b" c'))
KNOWN = [ORDERS, CUSTOMERS, UPPER, ODD]


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as opened:
        yield opened


ALLOWED = {
    "select * from shop.public.orders": [ORDERS],
    "from shop.public.customers select id": [CUSTOMERS],
    "select * from shop.public.CUSTOMERS": [CUSTOMERS],
    'select * from "shop"."public"."Orders"': [UPPER],
    'select * from shop."my.schema"."a ""b"" c"': [ODD],
    "table shop.public.orders": [ORDERS],
    "values (1, 'a')": [],
    "select 1": [],
    "with orders as (select 1 a) select * from orders": [],
    "with Orders as (select 1 a) select * from oRDERS": [],
    "with a as (from shop.public.orders), b as (from a) select * from b, a": [ORDERS],
    "with recursive r(a) as (select 1 union all select a + 1 from r where a < 5) from r": [],
    "select * from (with x as (select 1) select * from x) y": [],
    "select o.id, (select max(c.id) from shop.public.customers c where c.id = o.id)"
    " from shop.public.orders o": [CUSTOMERS, ORDERS],
    "select * from shop.public.orders o join shop.public.customers c using (id)"
    " left join lateral (select o.id + 1) x on true": [ORDERS, CUSTOMERS],
    "select id from shop.public.orders union all select id from shop.public.customers"
    " except select 3 order by 1 limit 5 offset 1": [ORDERS, CUSTOMERS],
    "select sum(x) over (partition by y order by z rows between 3 preceding and current row),"
    " row_number() over w, lag(x, 2, 0) over w, rank() over w, ntile(4) over w,"
    " first_value(x) over w from shop.public.orders window w as (order by z)": [ORDERS],
    "select count(*), count(distinct a), sum(b) filter (where c), grouping(a), list(a order by b)"
    " from shop.public.orders group by rollup (a) having count(*) > 1": [ORDERS],
    "select * exclude (a) replace (1 as b), columns('c.*') from shop.public.orders": [ORDERS],
    "select case a when 1 then 2 else 3 end, a between 1 and 2, a in (1, 2), a like 'x%',"
    " a ilike 'x', a similar to 'x', a is not distinct from b, not a, -a, a || b, a->>'b',"
    " cast(a as decimal(10, 2)), a::int[], try_cast(a as int), date '2020-01-01',"
    " interval '1 day', extract(year from d), date_trunc('hour', d), substring(a from 1 for 2),"
    " trim(both from a), position('a' in b), coalesce(a, b), nullif(a, b), a[1:2], [1, 2],"
    " {'a': 1}, map {'a': 1}, [x * 2 for x in [1] if x > 0], list_transform([1], x -> x + 1),"
    " a collate nocase, d at time zone 'UTC', exists (select 1), a > all (select 1),"
    " current_date, now(), current_timestamp, if(a, b, c), if_exists from shop.public.orders": [
        ORDERS
    ],
    "select * from generate_series(1, 3) g, unnest([1, 2]) u": [],
    "select * from shop.public.orders using sample 10 rows": [ORDERS],
    "select * from shop.public.orders qualify row_number() over (order by id) = 1": [ORDERS],
}


@pytest.mark.parametrize("sql", ALLOWED)
def test_select_passes(connection, sql):
    assert sorted(check(connection, sql, KNOWN).tables) == sorted(ALLOWED[sql])


REFUSED = [
    # Other statements.
    "insert into shop.public.orders values (1)",
    "update shop.public.orders set id = 1",
    "delete from shop.public.orders",
    "merge into shop.public.orders using (select 1) s on true when matched then delete",
    "create table x as select 1",
    "create view x as select 1",
    "create macro f() as 1",
    "drop table shop.public.orders",
    "alter table shop.public.orders add column x int",
    "truncate shop.public.orders",
    "copy shop.public.orders to '/tmp/x.csv'",
    "copy (select 1) to '/tmp/x.csv'",
    "export database '/tmp/x'",
    "import database '/tmp/x'",
    "attach '/tmp/x.db' as x",
    "detach shop",
    "use shop",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "SeT/**/threads = 1",
    "reset threads",
    "set variable x = 1",
    "pragma database_list",
    "pragma_version()",
    "call pragma_version()",
    "checkpoint",
    "vacuum",
    "begin",
    "prepare x as select 1",
    "execute x",
    "explain select 1",
    "explain analyze select 1",
    "describe shop.public.orders",
    "summarize shop.public.orders",
    "show tables",
    "show all tables",
    "pivot shop.public.orders on id using count(*)",
    # Several statements, parameters, nothing.
    "select 1; select 2",
    "select 1;;select 2",
    "select 1; drop table x",
    "select 1 /* ; */; -- x\n drop table x",
    "select 1\n;\nattach 'x'",
    "",
    " ; ",
    "-- select 1",
    "select ?",
    "select $1",
    "select $name",
    # A SELECT that writes, or that looks at the catalog.
    "select 1 into x",
    "with x as (insert into t values (1) returning *) select * from x",
    "with x as (delete from shop.public.orders returning *) select * from x",
    "with x as (update shop.public.orders set id = 1 returning id) select * from x",
    "select * from (show tables)",
    "select * from (describe shop.public.orders)",
    "from (summarize shop.public.orders)",
    "select * from (pivot shop.public.orders on id in (1) using count(*))",
    "select * from shop.public.orders at (version => 1)",
    # Files, by name and by function.
    "select * from '/etc/passwd'",
    "select * from 'x.parquet'",
    'select * from "x.csv"',
    "from 'https://example.org/x.csv'",
    "from read_csv('/etc/passwd')",
    "from READ_CSV('/etc/passwd')",
    "from read_csv_auto('x')",
    "from /**/ read_text /**/ ('/etc/passwd')",
    "from read_blob('/etc/passwd')",
    "from read_json('x')",
    "from read_ndjson_objects('x')",
    "from read_parquet('x')",
    "from parquet_scan('x')",
    "from parquet_metadata('x')",
    "from parquet_schema('x')",
    "from sniff_csv('x')",
    "from glob('/*')",
    "from delta_scan('x')",
    "from \"read_csv\"('x')",
    "from system.main.read_csv('x')",
    "from main.range(3)",
    "select (select content from read_text('/etc/passwd'))",
    "select * from shop.public.orders o, lateral (select * from read_text('x'))",
    "select * from shop.public.orders where id in (select 1 from glob('*'))",
    "with x as (from read_text('x')) select 1",
    "with x as (with y as (from read_text('x')) select 1) select 1",
    "with recursive r as (select 1 union all select 1 from read_text('x')) select 1",
    "select 1 union all select content from read_text('x')",
    "select 1 order by (select 1 from glob('*'))",
    "select 1 limit (select count(*) from glob('*'))",
    "select sum(1) over (order by (select 1 from glob('*')))",
    "select case when true then (select 1 from glob('*')) end",
    "select [x for x in (select file from glob('*'))]",
    "select count(*) filter (where exists (from glob('*')))",
    "values ((select content from read_text('x')))",
    "select list_transform([1], x -> (select 1 from glob('*')))",
    # Functions that run text, or tell of settings and the machine.
    "from query('select 1')",
    "from query_table('shop.public.orders')",
    "from duckdb_settings()",
    "from duckdb_secrets()",
    "from duckdb_tables()",
    "from pragma_database_list",
    "from pragma_table_info('x')",
    "from pg_catalog.pg_class",
    "from information_schema.tables",
    "from sqlite_master",
    "select current_setting('threads')",
    "select getenv('HOME')",
    "select GetEnv('HOME')",
    "select \"getenv\"('HOME')",
    "select system.main.getenv('HOME')",
    "select 'HOME'.getenv()",
    "select getvariable('x')",
    "select current_schemas(true)",
    "select nextval('s')",
    "select setseed(0.5)",
    "select sleep_ms(10)",
    "select write_log('x')",
    "select json_execute_serialized_sql('x')",
    "from json_execute_serialized_sql(json_serialize_sql('select 1'))",
    "select count(*) from test_all_types()",
    "from repeat_row(1, num_rows => 3)",
    "from arrow_scan(1, 2, 3)",
    "from pandas_scan(1)",
    "from python_arrow_scan(1)",
    "select version()",
    "select invoke(x -> x, 1)",
    # Tables that are not in cdc.yaml.
    "select * from shop.public.secrets",
    "select * from orders",
    "select * from public.orders",
    "select * from other.public.orders",
    "select * from a.shop.public.orders",
    "select * from _cdc.main.t0_tail",
    "select * from memory.main.x",
    "select * from temp.main.x",
    "with a as (select * from b), b as (select 1) select * from a",
    "with public as (select 1) select * from public.secrets",
    "select * from (with x as (select 1) select 1), x",
    "select * from shop.public.ORDERS",
    # Unicode that looks like something else.
    "\uff53elect * \uff46rom read_text('x')",
    "select * from \u202eread_text('x')",
    "select * from shop.public.\u043erders",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_everything_else_is_refused(connection, sql):
    with pytest.raises(QueryError) as refused:
        check(connection, sql, KNOWN)
    assert refused.value.code in ("sql_refused", "sql_invalid", "table_unknown")


def test_nothing_of_a_refused_statement_runs():
    with duckdb.connect() as connection:
        for sql in ("create table made (a int)", "select 1; create table made (a int)"):
            with pytest.raises(QueryError):
                check(connection, sql, KNOWN)
        assert connection.execute("select count(*) from duckdb_tables()").fetchone() == (0,)


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        ("select 1;", "select 1"),
        ("select ';' ; -- ; x", "select ';' "),
        ("select E'\\'; ' ;", "select E'\\'; ' "),
        ("select $$ ; $$, $x$ ; $$ $x$ ;", "select $$ ; $$, $x$ ; $$ $x$ "),
        ('select 1 as ";" ;;', 'select 1 as ";" '),
        ("select 1 /* ; /* ; */ */ ;", "select 1 /* ; /* ; */ */ "),
        ("select 1 -- ;", "select 1 -- ;"),
        ("select 'it''s ;' /* x", None),
    ],
)
def test_end_of_the_statement(connection, sql, kept):
    if kept is None:
        with pytest.raises(QueryError):
            check(connection, sql, KNOWN)
    else:
        assert check(connection, sql, KNOWN).sql == kept


def test_unknown_tables_come_with_the_nearest_names(connection):
    def remedy(sql):
        with pytest.raises(QueryError) as refused:
            check(connection, sql, [ORDERS, CUSTOMERS])
        assert refused.value.code == "table_unknown"
        return refused.value.remedy

    assert "shop.public.orders?" in remedy("from shop.public.order")
    assert "shop.public.orders?" in remedy("from orders")
    assert "shop.public.customers?" in remedy("from public.customers")
    assert "shop.public.customers, shop.public.orders" in remedy("from zzz")


def test_names_that_differ_by_case_do_not_meet_in_one_query(connection):
    with pytest.raises(QueryError, match="upper and lower case"):
        check(connection, 'from shop.public.orders, shop.public."Orders"', KNOWN)


@pytest.mark.parametrize("source", ["temp", "system"])
def test_source_names_that_duckdb_reserves(connection, source):
    name = TableName(source, TableId("public", "orders"))
    with pytest.raises(QueryError) as refused:
        check(connection, f"from {source}.public.orders", [name])
    assert refused.value.code == "source_name_reserved"


@pytest.mark.parametrize("sql", ["select " + "(" * 50_000, "select " + "-" * 3 + "1" * 300_000])
def test_monstrous_statements(connection, sql):
    with pytest.raises(QueryError):
        check(connection, sql, KNOWN)


def test_deep_nesting_is_an_error_and_no_crash(connection):
    for depth in (200, 900, 5000):
        sql = "select " + "(select " * depth + "1" + ")" * depth
        try:
            check(connection, sql, KNOWN)
        except QueryError as error:
            assert error.code in ("sql_invalid", "sql_refused")


def test_allowed_functions_are_duckdbs(connection):
    """Names that DuckDB does not have would hide a misspelling."""
    names = {
        name.lower()
        for (name,) in connection.execute(
            "select distinct function_name from duckdb_functions()"
        ).fetchall()
    }
    window = {"cume_dist", "dense_rank", "fill", "first_value", "lag", "last_value", "lead"}
    window |= {"nth_value", "ntile", "percent_rank", "rank", "rank_dense", "row_number"}
    parsed = {"coalesce", "ifnull", "->", "<>", "current_timestamp"}
    assert functions.EXPRESSIONS - names - window - parsed == set()
    dangerous = ("read_", "duckdb_", "pragma_", "pg_", "current_s", "setseed", "query", "getenv")
    assert [n for n in functions.EXPRESSIONS if n.startswith(dangerous)] == ["pg_typeof"]
