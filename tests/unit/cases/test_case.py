"""Case files: what is understood, and what is refused rather than skipped."""

import hashlib

import pytest

from cdc.names import TableId
from tests.cases.case import (
    Autocommit,
    BadCase,
    Concurrent,
    CopyIn,
    Transaction,
    cell,
    digest,
    find_cases,
    line,
    load_case,
)

TEXT = """\
id: sample
title: A sample
area: samples
origin: []
needs: {pg_min: 15, extension: hstore, settings: {max_prepared_transactions: 2}}
setup:
  - create table t (id int primary key)
stream:
  - - insert into t values (1)
    - prepare transaction 'one'
  - {txn: [select 1], rollback: true}
  - {txn: [select 1, update t set id = 2], fails: "55000"}
  - autocommit: [commit prepared 'one']
  - {concurrent: true, a: [begin, commit], b: [select 1], order: aba, repeat: 3}
  - - {copy: copy t from stdin, data: "1\\n"}
expect:
  table: t
  key: [id]
  final_rows: select id::text from t order by 1
  columns: [id]
  rows:
    - ["1"]
    - [{len: 300, sha256: "ab"}]
  also:
    - {table: u, schema: s, key: [], columns: [a], digest: {count: 2, sha256: "cd"}}
  accept: [equal, reported]
  error: {must_name: [t, id], text: say it}
  from_log: false
  events:
    - {op: r, key: ["1"]}
    - {op: u, key: ["1"], note: "not on the wire: a, b"}
    - {op: "t", key: null, table: u, schema: s}
  notes: none
"""


def load(tmp_path, text=TEXT):
    file = tmp_path / "sample.yaml"
    file.write_text(text)
    return load_case(file)


def test_every_part_of_a_case_is_read(tmp_path):
    case = load(tmp_path)
    assert (case.id, case.pg_min, case.extensions) == ("sample", 15, ("hstore",))
    assert case.settings == {"max_prepared_transactions": "2"}
    assert case.publication == "for all tables"
    assert case.stream == (
        Transaction(("insert into t values (1)", "prepare transaction 'one'")),
        Transaction(("select 1",), rollback=True),
        Transaction(("select 1", "update t set id = 2"), fails="55000"),
        Autocommit(("commit prepared 'one'",)),
        Concurrent(("begin", "commit"), ("select 1",), "aba", 3),
        Transaction((CopyIn("copy t from stdin", "1\n"),)),
    )
    assert case.two_phase
    main, also = case.tables
    assert main.id == TableId("public", "t")
    assert main.rows == ('["1"]', '[{"len":300,"sha256":"ab"}]')
    assert (also.id, also.key, also.digest) == (TableId("s", "u"), (), (2, "cd"))
    assert (case.reported, case.must_name, case.from_log) == (True, ("t", "id"), False)
    assert [(e.op, e.table.table, e.key, sorted(e.unsent)) for e in case.events] == [
        ("r", "t", '["1"]', []),
        ("u", "t", '["1"]', ["a", "b"]),
        ("t", "u", None, []),
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("title: A", "topic: A"),
        ("rollback: true", "rolled_back: true"),
        ("accept: [equal, reported]", "accept: [reported]"),
        ("order: aba", "order: abb"),
        ("{op: r,", "{op: x,"),
        ("columns: [id]", "colums: [id]"),
        ("expect:", "expects:"),
        ("data:", "text:"),
        ("id: sample", "id: ["),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path, before, after):
    assert before in TEXT
    with pytest.raises(BadCase):
        load(tmp_path, TEXT.replace(before, after, 1))


def test_a_long_cell_is_told_by_its_length_and_hash():
    text = "é" * 201
    assert cell("é" * 200) == "é" * 200
    assert cell(text) == {"len": 201, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    assert cell(None) is None


def test_lines_and_digests_are_those_of_the_format():
    rows = [line(["b", None]), line(["a", 'x"é'])]
    assert rows == ['["b",null]', '["a","x\\"é"]']
    both = '["a","x\\"é"]\n["b",null]\n'
    assert digest(rows) == (2, hashlib.sha256(both.encode()).hexdigest())


def test_a_folder_gives_its_cases_in_order_and_nothing_there_is_an_error(tmp_path):
    for name in ("b.yaml", "a.yaml", "notes.md"):
        (tmp_path / name).touch()
    assert [file.name for file in find_cases([tmp_path])] == ["a.yaml", "b.yaml"]
    twice = find_cases([tmp_path / "b.yaml", tmp_path])
    assert [file.name for file in twice] == ["b.yaml", "a.yaml"]
    with pytest.raises(BadCase):
        find_cases([tmp_path / "c.yaml"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.yaml").touch()
    with pytest.raises(BadCase, match="has the same name"):
        find_cases([tmp_path, tmp_path / "other"])
    with pytest.raises(BadCase):
        find_cases([tmp_path / "empty"])
