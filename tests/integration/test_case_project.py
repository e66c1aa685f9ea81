"""What the cdc.yaml of a case says of its tables."""

import psycopg
import pytest

from tests.cases.case import load_case
from tests.cases.project import chosen_tables

CASE = """\
id: sample
title: A sample
area: samples
origin: []
needs: {pg_min: 14}
setup: []
stream: []
expect: {table: t, key: [id], columns: [id, x], rows: [["1", "infinity"]],
  final_rows: "select id::text, x::text from t"}
"""


@pytest.mark.parametrize(
    ("column", "types"),
    [("date", {"x": "string"}), ("top", {"x": "string"}), ("text", {}), ("date[]", {})],
)
def test_what_a_date_cannot_hold_is_declared_to_be_text(database, tmp_path, column, types):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute("create domain base as date")
        connection.execute("create domain top as base")
        connection.execute(f"create table t (id int primary key, x {column})")
        connection.execute("create publication corpus_pub for all tables")
    file = tmp_path / "sample.yaml"
    file.write_text(CASE)
    assert chosen_tables(load_case(file), database) == [{"name": "public.t", "types": types}]
