"""Every refusal at start, on a real server: by name, with SQL that mends it, nothing created."""

import psycopg
import pytest

from cdc.errors import CdcError, EnvironmentProblem, SourceRefused
from cdc.names import TableId
from cdc.position import ZERO
from connectors.postgres.client import ReplicationClient, connect_sql
from connectors.postgres.preflight import preflight
from connectors.postgres.publication import create_publication

PUBLICATION, SLOT = "cdc_shop", "cdc_shop"


@pytest.fixture
def sql(database):
    with connect_sql(database) as connection:
        yield connection


def check(sql, *tables, manage=True, own_slot=False, slot=SLOT, keys=None):
    return preflight(
        sql,
        tables=[TableId("public", table) for table in tables],
        publication=PUBLICATION,
        manage=manage,
        slot=slot,
        own_slot=own_slot,
        keys={TableId("public", "t"): keys} if keys else {},
    )


def refusal(sql, *tables, **more) -> CdcError:
    before = created(sql)
    with pytest.raises((SourceRefused, EnvironmentProblem)) as refused:
        check(sql, *tables, **more)
    assert created(sql) == before
    return refused.value


def created(sql):
    return sql.execute(
        "SELECT ARRAY(SELECT pubname::text FROM pg_publication), ARRAY(SELECT slot_name::text "
        "FROM pg_replication_slots WHERE database = current_database())"
    ).fetchall()


GOOD = (
    "CREATE TABLE public.good (b text, a integer, v numeric(10,2) DEFAULT 1.5, PRIMARY KEY (a, b))"
)

# code, SQL, and SQL by which the same table passes (None: it cannot).
TABLES = {
    "no_key": (
        "CREATE TABLE public.t (id integer)",
        "ALTER TABLE public.t ADD PRIMARY KEY (id)",
    ),
    "identity_nothing": (
        "CREATE TABLE public.t (id integer PRIMARY KEY); "
        "ALTER TABLE public.t REPLICA IDENTITY NOTHING",
        "remedy",
    ),
    "identity_nothing (index dropped)": (
        "CREATE TABLE public.t (id integer PRIMARY KEY, c text NOT NULL); "
        "CREATE UNIQUE INDEX c ON public.t (c); "
        "ALTER TABLE public.t REPLICA IDENTITY USING INDEX c; DROP INDEX public.c",
        "remedy",
    ),
    "no_key (full identity)": (
        "CREATE TABLE public.t (id integer)",
        "ALTER TABLE public.t REPLICA IDENTITY FULL",
    ),
    "full_without_key": (
        "CREATE TABLE public.t (id integer) PARTITION BY RANGE (id); "
        "ALTER TABLE public.t REPLICA IDENTITY FULL",
        "ALTER TABLE public.t ADD PRIMARY KEY (id)",
    ),
    "deferrable_key": (
        "CREATE TABLE public.t (id integer PRIMARY KEY DEFERRABLE)",
        "ALTER TABLE public.t REPLICA IDENTITY FULL",
    ),
    "key_not_published": (
        "CREATE TABLE public.t (id integer, g integer GENERATED ALWAYS AS (id + 1) STORED, "
        "PRIMARY KEY (g))",
        None,
    ),
    "foreign_table": (
        "CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER s FOREIGN DATA WRAPPER nowhere; "
        "CREATE FOREIGN TABLE public.t (id integer) SERVER s",
        None,
    ),
    "view": ("CREATE VIEW public.t AS SELECT 1 AS id", None),
    "materialized_view": ("CREATE MATERIALIZED VIEW public.t AS SELECT 1 AS id", None),
    "not_a_table": ("CREATE SEQUENCE public.t", None),
    "unlogged": ("CREATE UNLOGGED TABLE public.t (id integer PRIMARY KEY)", "remedy"),
    "unlogged_partition": (
        "CREATE TABLE public.t (id integer PRIMARY KEY) PARTITION BY RANGE (id); "
        "CREATE TABLE public.m PARTITION OF public.t FOR VALUES FROM (0) TO (9)"
        " PARTITION BY HASH (id); "
        'CREATE UNLOGGED TABLE public."P" PARTITION OF public.m FOR VALUES WITH (modulus 1,'
        " remainder 0)",
        "remedy",
    ),
    "reserved_column": (
        "CREATE TABLE public.t (id integer PRIMARY KEY, _cdc_lsn bigint)",
        "ALTER TABLE public.t RENAME COLUMN _cdc_lsn TO lsn",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_is_refused_by_name_and_passes_once_mended(sql, case):
    statements, mended_by = TABLES[case]
    for statement in statements.split("; "):
        sql.execute(statement.encode())
    error = refusal(sql, "t")
    assert isinstance(error, SourceRefused)
    assert error.exit_code == 2
    assert error.table == "public.t"
    assert error.code == case.partition(" (")[0]
    assert error.remedy
    if mended_by is None:
        return
    if mended_by.startswith("remedy"):
        mended_by = error.remedy.partition("; or")[0]
    sql.execute(mended_by.encode())
    check(sql, "t")


# SQL, the key that cdc.yaml gives, and whether the remedy of a refusal is all that it takes.
KEYS = {
    "chosen": ("CREATE UNIQUE INDEX ON public.t (b, a)", ("a", "b"), None),
    "chosen (with another column)": (
        "CREATE UNIQUE INDEX ON public.t (b) INCLUDE (n)",
        ("b",),
        None,
    ),
    "chosen (primary key)": ("SELECT 1", ("id",), None),
    "not unique": ("CREATE INDEX ON public.t (a)", ("a",), True),
    "not of all rows": ("CREATE UNIQUE INDEX ON public.t (a) WHERE b > 0", ("a",), True),
    "not of the column": ("CREATE UNIQUE INDEX ON public.t (a, abs(b))", ("a", "b"), True),
    "not of these columns": ("CREATE UNIQUE INDEX ON public.t (a, b)", ("a",), True),
    "checked late": ("ALTER TABLE public.t ADD UNIQUE (a) DEFERRABLE", ("a",), True),
    "not valid": (
        "CREATE UNIQUE INDEX i ON public.t (a); "
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'public.i'::regclass",
        ("a",),
        True,
    ),
    "with NULLs": ("CREATE UNIQUE INDEX ON public.t (n)", ("n",), True),
    "not FULL": ("ALTER TABLE public.t REPLICA IDENTITY DEFAULT", ("a",), False),
}


@pytest.mark.parametrize("case", KEYS)
def test_a_key_that_cdc_yaml_gives(sql, case):
    statements, key, mended = KEYS[case]
    sql.execute(
        b"CREATE TABLE public.t (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL, n int)"
    )
    sql.execute(b"ALTER TABLE public.t REPLICA IDENTITY FULL")
    for statement in statements.split("; "):
        sql.execute(statement.encode())
    if mended is not None:
        error = refusal(sql, "t", keys=key)
        assert (error.code, error.table) == (
            "key_not_unique" if mended else "key_without_full",
            "public.t",
        )
        sql.execute((error.remedy or "").partition("; or take")[0].encode())
    if mended is not False:
        facts = check(sql, "t", keys=key)
        assert facts.tables[TableId("public", "t")].key.columns == key


def test_a_column_whose_null_rows_were_not_looked_at(sql):
    if sql.info.server_version < 180_000:
        pytest.skip("such constraints came with version 18")
    sql.execute(
        "CREATE TABLE public.t (id int PRIMARY KEY, a int); INSERT INTO public.t VALUES (1), (2)"
    )
    sql.execute("CREATE UNIQUE INDEX ON public.t (a)")
    sql.execute("ALTER TABLE public.t ADD CONSTRAINT a_there NOT NULL a NOT VALID")
    sql.execute("ALTER TABLE public.t REPLICA IDENTITY FULL")
    assert refusal(sql, "t", keys=("a",)).code == "key_not_unique"


def test_row_security_that_hides_rows(stack, database, sql):
    sql.execute("CREATE TABLE public.t (id integer PRIMARY KEY)")
    sql.execute("ALTER TABLE public.t ENABLE ROW LEVEL SECURITY")
    check(sql, "t")  # a superuser sees all rows
    with role(sql, database, "REPLICATION") as (name, other):
        sql.execute(f"GRANT SELECT ON public.t TO {name}".encode())
        create_publication(sql, PUBLICATION, [TableId("public", "t")])
        refused = check(other, "t", manage=False).refused
        assert [f.code for f in refused[TableId("public", "t")]] == ["row_security"]
        sql.execute(f"ALTER ROLE {name} BYPASSRLS".encode())
        assert not check(other, "t", manage=False).refused


class role:
    """A role without rights, and a connection of it; dropped at the end."""

    def __init__(self, sql, database, attributes=""):
        self.sql = sql
        self.name = f"r_{database['dbname']}"
        sql.execute(f"CREATE ROLE {self.name} LOGIN PASSWORD 'x' {attributes}".encode())
        self.connection = connect_sql({**database, "user": self.name, "password": "x"})

    def __enter__(self):
        return self.name, self.connection

    def __exit__(self, *_):
        self.connection.close()
        self.sql.execute(f"DROP OWNED BY {self.name}".encode())
        self.sql.execute(f"DROP ROLE {self.name}".encode())


def test_what_our_role_lacks(database, sql):
    sql.execute("CREATE SCHEMA hidden")
    sql.execute("CREATE TABLE hidden.t (id integer PRIMARY KEY)")
    sql.execute("CREATE TABLE public.t (id integer PRIMARY KEY)")
    with role(sql, database) as (name, other):
        tables = [TableId("public", "t"), TableId("hidden", "t")]
        with pytest.raises(EnvironmentProblem) as refused:
            preflight(other, tables=tables, publication=PUBLICATION, manage=True, slot=SLOT)
        error = refused.value
        assert error.exit_code == 3
        for part in (
            f'server: the role {name} lacks the REPLICATION attribute → ALTER ROLE "{name}" REPL',
            f'public.t: the role {name} may not read it → GRANT USAGE ON SCHEMA "public"',
            f'hidden.t: the role {name} may not read it → GRANT USAGE ON SCHEMA "hidden"',
            f"publication {PUBLICATION}: the role {name} may not create it → GRANT CREATE ON DATA",
            f"publication {PUBLICATION}: only the owner of public.t, hidden.t may publish it",
        ):
            assert part in str(error)
        sql.execute(f"ALTER ROLE {name} REPLICATION".encode())
        sql.execute(f"GRANT USAGE ON SCHEMA hidden TO {name}".encode())
        sql.execute(f"GRANT SELECT ON public.t, hidden.t TO {name}".encode())
        # The rights to publish are not needed if a person has published.
        with pytest.raises(EnvironmentProblem) as refused:
            preflight(other, tables=tables, publication=PUBLICATION, manage=True, slot=SLOT)
        assert refused.value.code == "no_publication_right"
        create_publication(sql, PUBLICATION, tables)
        for manage in (True, False):
            preflight(other, tables=tables, publication=PUBLICATION, manage=manage, slot=SLOT)


def test_what_is_wrong_with_a_matching_table_refuses_it_alone(sql):
    def matched(*tables, manage=True):
        ids = [TableId("public", table) for table in tables]
        facts = preflight(
            sql, tables=[], publication=PUBLICATION, manage=manage, slot=SLOT, matched=ids
        )
        return {id.table: [f.code for f in found] for id, found in facts.refused.items()}

    sql.execute(GOOD)
    sql.execute("CREATE TABLE public.t (id integer)")
    assert matched("good", "t") == {"t": ["no_key"]}
    create_publication(sql, PUBLICATION, [])
    assert matched("good", "t", manage=False) == {"good": ["not_published"], "t": ["no_key"]}
    sql.execute("ALTER TABLE public.t ADD PRIMARY KEY (id)")
    sql.execute("ALTER PUBLICATION cdc_shop ADD TABLE public.good")
    assert matched("good", "t") == {"t": ["not_published"]}
    sql.execute("ALTER PUBLICATION cdc_shop ADD TABLE public.t")
    assert matched("good", "t") == {}
    # Somebody published it who was faster than we.
    sql.execute("ALTER TABLE public.t DROP CONSTRAINT t_pkey")
    assert matched("good", "t") == {"t": ["no_key"]}


def test_a_publication_that_is_not_ours_keeps_only_the_table_back_that_cannot_be_captured(sql):
    sql.execute(GOOD)
    sql.execute("CREATE TABLE public.t (id integer)")
    sql.execute("CREATE PUBLICATION cdc_shop FOR ALL TABLES")
    facts = check(sql, "good", "t", manage=False)
    assert {id.table: [f.code for f in found] for id, found in facts.refused.items()} == {
        "t": ["no_key"]
    }
    assert refusal(sql, "good", "t").code == "source_refused"


def test_a_missing_table_and_a_missing_publication(sql):
    error = refusal(sql, "nowhere")
    assert (error.code, error.table) == ("table_missing", "public.nowhere")
    sql.execute(GOOD)
    error = refusal(sql, "good", manage=False)
    assert error.code == "publication_missing"
    assert error.remedy and error.remedy.startswith('CREATE PUBLICATION "cdc_shop" FOR TABLE')
    sql.execute(error.remedy.encode())
    check(sql, "good", manage=False)


def test_a_partition_is_refused_beside_its_table_only(sql):
    sql.execute("CREATE TABLE public.root (id integer PRIMARY KEY) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE public.t PARTITION OF public.root FOR VALUES FROM (0) TO (9)")
    error = refusal(sql, "root", "t")
    assert (error.code, error.table) == ("partition", "public.t")
    check(sql, "root")
    check(sql, "t")


def test_names_are_case_sensitive(sql):
    sql.execute('CREATE TABLE public."Good" (id integer PRIMARY KEY)')
    assert refusal(sql, "good").code == "table_missing"
    check(sql, "Good")


LESS = "does not publish delete, truncate"
PUBLICATIONS = {
    "publishes all tables": "CREATE PUBLICATION cdc_shop FOR ALL TABLES",
    "publishes tables that cdc.yaml does not list: public.other": (
        "CREATE PUBLICATION cdc_shop FOR TABLE public.good, public.other"
    ),
    "does not publish public.good": "CREATE PUBLICATION cdc_shop",
    "publishes whole schemas: public": "CREATE PUBLICATION cdc_shop FOR TABLES IN SCHEMA public",
    "has a row filter on public.good": (
        "CREATE PUBLICATION cdc_shop FOR TABLE public.good WHERE (a > 1)"
    ),
    "has a column list on public.good": (
        "CREATE PUBLICATION cdc_shop FOR TABLE public.good (a, b)"
    ),
    LESS: ("CREATE PUBLICATION cdc_shop FOR TABLE public.good WITH (publish = 'insert, update')"),
}


#: What only a publication of ours must not do.
OURS = {
    "publishes all tables",
    "publishes tables that cdc.yaml does not list: public.other",
    "publishes whole schemas: public",
    "has a row filter on public.good",
    "has a column list on public.good",
}


def make_publication(sql, problem):
    try:
        sql.execute(PUBLICATIONS[problem].encode())
    except psycopg.errors.SyntaxError:
        assert sql.info.server_version < 150_000
        pytest.skip("it came with Postgres 15")


@pytest.mark.parametrize("problem", sorted(OURS))
def test_what_else_a_publication_of_somebody_else_does_is_their_affair(sql, problem):
    sql.execute(GOOD)
    sql.execute("CREATE TABLE public.other (id integer PRIMARY KEY)")
    make_publication(sql, problem)
    check(sql, "good", manage=False)


@pytest.mark.parametrize(
    ("problem", "manage"),
    [(p, True) for p in PUBLICATIONS] + [("does not publish public.good", False)],
)
def test_a_publication_that_differs_is_refused_and_its_remedy_mends_it(sql, problem, manage):
    sql.execute(GOOD)
    sql.execute("CREATE TABLE public.other (id integer PRIMARY KEY)")
    make_publication(sql, problem)
    error = refusal(sql, "good", manage=manage)
    assert error.code == "publication_differs"
    assert problem in str(error)
    lines = error.message.split("\n")[1:]
    for remedy in [line.partition(" → ")[2] for line in lines] or [error.remedy or ""]:
        for statement in remedy.split("; "):
            sql.execute(statement.encode())
    check(sql, "good", manage=manage)


def test_operations_that_somebody_elses_publication_lacks_keep_back_its_tables(sql):
    sql.execute(GOOD)
    sql.execute(PUBLICATIONS[LESS].encode())
    ((table, (finding,)),) = check(sql, "good", manage=False).refused.items()
    assert (str(table), finding.code) == ("public.good", "publication_differs")
    assert LESS in finding.problem
    sql.execute(finding.remedy.encode())
    assert not check(sql, "good", manage=False).refused


def test_a_slot_of_that_name_that_is_not_ours(database, sql):
    sql.execute(GOOD)
    slot = f"s_{database['dbname']}"
    with ReplicationClient(database) as client:
        client.create_slot(slot, False)
        error = refusal(sql, "good", slot=slot)
        assert error.code == "slot_exists"
        assert f"pg_drop_replication_slot('{slot}')" in str(error)
        facts = check(sql, "good", own_slot=True, slot=slot)
        assert facts.slot is not None
        assert (facts.slot.plugin, facts.slot.active, facts.slot.lost) == ("pgoutput", False, False)
        client.drop_slot(slot)
    assert check(sql, "good", slot=slot).slot is None


def test_all_problems_are_told_at_once(sql):
    sql.execute("CREATE TABLE public.a (id integer)")
    sql.execute("CREATE TABLE public.b (id integer PRIMARY KEY, _cdc_x inet)")
    sql.execute("CREATE PUBLICATION cdc_shop FOR ALL TABLES")
    error = refusal(sql, "a", "b", "c")
    assert (error.code, error.table) == ("source_refused", None)
    lines = error.message.split("\n")
    assert lines[0].startswith("4 problems ")
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "public.a",
        "public.b",
        "public.c",
        "publication cdc_shop",
    ]


def test_full_with_generated_columns_that_are_not_sent(sql):
    sql.execute(
        "CREATE TABLE public.t (id integer PRIMARY KEY, g integer GENERATED ALWAYS AS (id + 1) "
        "STORED)"
    )
    sql.execute("ALTER TABLE public.t REPLICA IDENTITY FULL")
    sql.execute("INSERT INTO public.t VALUES (1)")
    if sql.info.server_version < 180_000:
        assert check(sql, "t").tables
        create_publication(sql, PUBLICATION, [TableId("public", "t")])
        sql.execute("UPDATE public.t SET id = 2")
        return
    error = refusal(sql, "t")
    assert (error.code, error.table) == ("generated_not_published", "public.t")
    # It would be so: the server refuses the application's update.
    create_publication(sql, PUBLICATION, [TableId("public", "t")])
    with pytest.raises(psycopg.Error, match="generated column"):
        sql.execute("UPDATE public.t SET id = 2")
    sql.execute(str(error.remedy).split(" or")[0])
    sql.execute("UPDATE public.t SET id = 2")
    assert check(sql, "t").tables


def test_the_schema_is_read_from_the_catalog(sql):
    sql.execute(GOOD)
    sql.execute("ALTER TABLE public.good ADD gone text")
    sql.execute("ALTER TABLE public.good DROP gone")
    sql.execute("ALTER TABLE public.good ADD g integer GENERATED ALWAYS AS (a + 1) STORED")
    sql.execute("ALTER TABLE public.good ADD d date")
    create_publication(sql, PUBLICATION, [TableId("public", "good")])
    filenode = sql.execute("SELECT pg_relation_filenode('public.good')").fetchone()[0]
    facts = check(sql, "good")
    table = facts.tables[TableId("public", "good")]
    assert facts.notices == (
        "public.good: generated columns are not replicated and are left out: g",
    )
    assert (table.identity, table.filenode, table.pub_rel is None) == ("d", filenode, False)
    schema = table.schema(load=2, valid_from=ZERO)
    assert (schema.version, schema.load, schema.relid) == (1, 2, table.relid)
    assert schema.key == ("a", "b")  # in the order of the index, not of the table
    assert [(c.id, c.name, c.type, c.typmod, c.not_null, c.default) for c in schema.columns] == [
        (1, "b", "text", -1, True, None),
        (2, "a", "integer", -1, True, None),
        (3, "v", "numeric(10,2)", 655366, False, "1.5"),
        (6, "d", "date", -1, False, None),
    ]


def test_what_a_table_leaves_out_is_told(sql):
    if sql.info.server_version < 150000:
        pytest.skip("row filters came with version 15")
    sql.execute("CREATE TABLE public.parent (id integer PRIMARY KEY)")
    sql.execute("CREATE TABLE public.child (PRIMARY KEY (id)) INHERITS (public.parent)")
    sql.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE ONLY public.parent,"
        " public.child WHERE (id > 1)"
    )
    assert check(sql, "parent", "child", manage=False).notices == (
        "public.parent: its own rows are captured; those of tables that inherit from it come under "
        "their own names, if cdc.yaml names them",
        "public.child: the publication has only the rows where (id > 1)",
    )


def test_the_key_is_the_identity_index_if_there_is_one(sql):
    sql.execute("CREATE TABLE public.t (id integer PRIMARY KEY DEFERRABLE, x text NOT NULL)")
    sql.execute("CREATE UNIQUE INDEX x ON public.t (x) INCLUDE (id)")
    sql.execute("ALTER TABLE public.t REPLICA IDENTITY USING INDEX x")
    schema = check(sql, "t").tables[TableId("public", "t")].schema(1, ZERO)
    assert (schema.identity, schema.key) == ("i", ("x",))
