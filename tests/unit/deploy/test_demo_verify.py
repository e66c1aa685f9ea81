"""A difference is told by table and number of keys; an old answer is not taken."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import CdcError
from cdc.position import frontier
from cdc.query.result import AsOf, QueryResult
from deploy.demo import verify
from deploy.demo.compare import arrow_schema
from deploy.demo.data import TABLES
from deploy.demo.project import SOURCE, create_project

LSN = 1_000
_VALUES = {"text": "x", "integer": 7, "double precision": 0.5, "timestamptz": None}
_DUCKDB = {
    "text": "VARCHAR",
    "integer": "INTEGER",
    "double precision": "DOUBLE",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
}


def rows_of(table):
    return [tuple(_VALUES[kind] for kind in table.columns.values())]


def arrow(table, rows):
    return (
        arrow_schema(table)
        .empty_table()
        .from_pylist(
            [dict(zip(table.columns, row, strict=True)) for row in rows], schema=arrow_schema(table)
        )
    )


class NoWatch:
    def folder(self, id):
        return id.table


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Compares tables of one row each, after what the test has changed in them."""
    project = create_project(tmp_path / "demo", outlives=False)
    by_name = {table.name: table for table in TABLES}
    query = {table.name: rows_of(table) for table in TABLES}
    delta = {table.name: rows_of(table) for table in TABLES}

    def run_query(_config, sql):
        table = by_name[sql.rsplit(".", 1)[1]]
        types = tuple(_DUCKDB[kind] for kind in table.columns.values())
        as_of = {SOURCE: AsOf(frontier(1, LSN), 0, 0.0)}
        return QueryResult(tuple(table.columns), types, query[table.name], as_of)

    monkeypatch.setattr(verify, "source_conninfo", lambda config, source: {})
    monkeypatch.setattr(verify, "postgres_rows", lambda _, table: arrow(table, rows_of(table)))
    monkeypatch.setattr(verify, "delta_rows", lambda name, table: arrow(table, delta[name]))
    monkeypatch.setattr(verify, "run_query", run_query)
    watch: Any = NoWatch()
    verifier = verify.Verifier(project.config, SOURCE, watch)
    yield lambda lsn=LSN: verifier.check(lsn, lambda table: None), query, delta
    project.remove()


def test_equal_tables_are_counted(check):
    run, _, _ = check
    assert run() == {table.name: 1 for table in TABLES}


def test_every_difference_is_told(check):
    run, query, delta = check
    query["planes"] = []
    delta["flights"] = [*delta["flights"], *delta["flights"]]
    with pytest.raises(CdcError) as found:
        run()
    assert found.value.code == "demo_differs"
    assert found.value.exit_code == 1
    assert found.value.message == (
        "nyc.public.planes by cdc query is not what Postgres holds: "
        "1 key differs (1 missing, 0 too many, 0 with other values); "
        "nyc.public.flights by its Delta table is not what Postgres holds: "
        "1 key differs (0 missing, 1 too many, 0 with other values)"
    )


def test_an_answer_from_before_the_last_change_is_not_taken(check):
    run, _, _ = check
    with pytest.raises(CdcError) as found:
        run(LSN + 1)
    assert found.value.code == "demo_stale"
