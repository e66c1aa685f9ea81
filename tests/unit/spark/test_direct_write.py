"""Batches that deltalake writes, without Spark."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import Field, PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc import codecs
from cdc.errors import LakeError
from cdc.lake import AppId, CommitNote, open_replica
from cdc.position import Position
from spark_jobs import direct_write
from spark_jobs.direct_write import MOST_REWRITTEN, suits, write_directly
from spark_jobs.first_commit import write_first_commit
from spark_jobs.layout import Layout
from spark_jobs.log_source import Batch
from tests.support.schemas import column, table_schema

APP = str(AppId("shop", "topic"))
KEYS = {
    codecs.INT2: st.integers(-(2**15), 2**15 - 1),
    codecs.INT4: st.integers(-(2**31), 2**31 - 1),
    codecs.INT8: st.integers(-(2**63), 2**63 - 1),
    # What a text of Postgres can hold.
    codecs.TEXT: st.sampled_from(("it's", "'", "a''b", "back\\slash", '"', "new\nline", "--", ""))
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    codecs.DATE: st.dates(),
}
NAMES = ("id", "ID", 'a"b', "it's", "a`b", "a.b", "min.a", "über", "select", "$x", "%s", "a\\b")


class Table:
    """A replica with one key column and one of text, written by ``write_directly`` alone."""

    def __init__(self, folder, key=codecs.INT4, name="id"):
        self.path = str(folder)
        self.layout = Layout(
            table_schema(column(1, name, key, not_null=True), ("v", codecs.TEXT), key=(name,)),
            "shop.public.t",
        )
        write_first_commit(self.path, self.layout, APP)
        self.lsn = 0
        self.model = {}

    def replica(self):
        return open_replica(self.path, table=self.layout.table)

    def batch(self, rows):
        schema = self.layout.arrow_schema(gone=True)
        columns = [
            list(rows),
            list(rows.values()),
            [self.lsn] * len(rows),
            [value is None for value in rows.values()],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        table = pa.table(arrays, schema=schema)
        return Batch(len(rows), sum(value is None for value in rows.values()), 0, table=table)

    def write(self, rows, way="overwrite", table=None):
        """Key to value, None to delete it."""
        self.lsn += 8
        note = CommitNote(Position.parse(f"0000-{self.lsn:016X}-00000000"), 0, {0: 1}, "apply")
        table = DeltaTable(self.path) if table is None else table
        batch = Batch(0, 0) if way == "empty" else self.batch(rows)
        done = write_directly(table, self.layout, batch, way, APP, note)
        if done:
            if way == "replace":
                self.model.clear()
            self.model |= rows
            for key in [key for key, value in self.model.items() if value is None]:
                del self.model[key]
        return done

    def table(self):
        builder = QueryBuilder().register("t", DeltaTable(self.path))
        return pa.table(builder.execute("select * from t").read_all())

    def rows(self):
        table = self.table()
        keys, values = (table.column(i).to_pylist() for i in (0, 1))
        found = dict(zip(keys, values, strict=True))
        assert len(found) == len(keys), "two rows of one key"
        return found

    def assert_same(self):
        assert self.rows() == self.model
        replica = self.replica()
        assert replica.position is not None and replica.position.lsn == self.lsn
        assert replica.note is not None


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=20)
@given(data=st.data())
def test_any_keys(kind, data, tmp_path_factory):
    table = Table(tmp_path_factory.mktemp("lake"), kind, data.draw(st.sampled_from(NAMES)))
    keys = data.draw(st.lists(KEYS[kind], min_size=1, max_size=6, unique=True))
    assert table.write(dict.fromkeys(keys[:3], "first"), "append")
    for _ in range(2):
        chosen = data.draw(st.lists(st.sampled_from(keys), min_size=1, unique=True))
        values = data.draw(st.lists(st.sampled_from((None, "x", "y")), min_size=6, max_size=6))
        assert table.write(dict(zip(chosen, values, strict=False)))
        table.assert_same()


def test_every_way(tmp_path):
    table = Table(tmp_path / "t")
    for rows, way in (
        ({}, "empty"),
        ({1: "a", 2: "b"}, "append"),
        ({}, "empty"),
        ({n: "many" for n in range(2000)}, "overwrite"),
        ({n: None for n in range(10, 2000)}, "overwrite"),
        ({7: "only"}, "replace"),
        ({7: None}, "replace"),
        ({8: "again"}, "overwrite"),
    ):
        assert table.write(rows, way)
        table.assert_same()
    assert table.rows() == {8: "again"}


def test_columns_that_the_source_dropped_are_null(tmp_path):
    table = Table(tmp_path / "t")
    table.write({1: "a"}, "append")
    DeltaTable(table.path).alter.add_columns(
        [Field("gone", PrimitiveType("decimal(9,2)")), Field("went", PrimitiveType("date"))]
    )
    table.write({2: "b"})
    table.assert_same()
    assert [table.table().column(name).null_count for name in ("gone", "went")] == [2, 2]


def test_another_writer_in_between(tmp_path):
    table = Table(tmp_path / "t")
    table.write({1: "a", 2: "b"}, "append")
    planned = DeltaTable(table.path)
    write_deltalake(table.path, table.batch({1: "x"}).table.drop(["_cdc_gone"]), mode="overwrite")
    with pytest.raises(LakeError) as refused:
        table.write({2: "c"}, table=planned)
    assert (refused.value.code, refused.value.table) == ("write_conflict", "shop.public.t")
    assert table.rows() == {1: "x"}


def test_what_fails_is_left_to_spark_and_quotes_nothing(tmp_path, monkeypatch, capsys):
    table = Table(tmp_path / "t")

    def fails(*_, **__):
        raise DeltaError("a key: 4711")

    monkeypatch.setattr(direct_write, "write_deltalake", fails)
    assert not table.write({4711: "a"}, "append")
    said = capsys.readouterr()
    assert "left_to_spark" in said.out + said.err
    assert "4711" not in said.out + said.err


class TestSuits:
    def ask(self, table, rows, way="overwrite", most=MOST_REWRITTEN):
        return suits(table.replica(), table.layout, table.batch(rows), way, most)

    def test_a_small_batch(self, tmp_path):
        table = Table(tmp_path / "t")
        assert self.ask(table, {1: "a"}, "append")
        assert self.ask(table, {}, "empty")
        assert not self.ask(table, {1: "a"}, "merge")
        assert not self.ask(table, {1: "a"}, "rewrite")
        assert not self.ask(table, {1: "a"}, most=0)

    def test_a_batch_that_spark_has_folded(self, tmp_path):
        table = Table(tmp_path / "t")
        assert not suits(table.replica(), table.layout, Batch(1, 0), "append", MOST_REWRITTEN)

    def test_a_large_batch_is_sparks(self, tmp_path, monkeypatch):
        table = Table(tmp_path / "t")
        rows = {n: "some text" for n in range(1000)}
        assert self.ask(table, rows, "append")
        monkeypatch.setattr(direct_write, "MOST_WRITTEN", 10_000)
        assert self.ask(table, {1: "a"}, "append")
        assert not self.ask(table, rows, "append")

    def test_versions_with_a_checkpoint_are_sparks(self, tmp_path):
        table = Table(tmp_path / "t")
        answers = []
        for number in range(12):
            answers.append(self.ask(table, {1: "a"}))
            table.write({1: str(number)})
        # The table was made as version 0: what is asked first would be version 1.
        assert [1 + i for i, answer in enumerate(answers) if not answer] == [10]

    def test_features_that_only_spark_writes(self, tmp_path):
        table = Table(tmp_path / "t")
        assert self.ask(table, {1: "a"})
        log = next((tmp_path / "t" / "_delta_log").glob("*.json"))
        log.write_text(log.read_text().replace('"appendOnly"', '"appendOnly", "columnMapping"'))
        assert not self.ask(table, {1: "a"})

    def test_only_files_that_may_hold_the_keys_count(self, tmp_path):
        table = Table(tmp_path / "t")
        table.write({n: f"value {n}" for n in range(1000)}, "append")
        table.write({n: None for n in range(100, 200)})
        assert not self.ask(table, {5: "x"}, most=100)
        assert not self.ask(table, {-1: "x", 5: "x"}, most=100)
        assert self.ask(table, {-1: "x", 1000: "x"}, most=100)

    def test_files_without_statistics_count(self, tmp_path):
        table = Table(tmp_path / "t")
        table.write({1: "a"}, "append")
        log = max((tmp_path / "t" / "_delta_log").glob("*.json"))
        lines = log.read_text().splitlines()
        kept = [line if '"add"' not in line else without_statistics(line) for line in lines]
        log.write_text("\n".join(kept))
        assert not self.ask(table, {99: "x"}, most=100)


def without_statistics(line):
    action = json.loads(line)
    action["add"]["stats"] = None
    return json.dumps(action)


def test_dates_are_dates(tmp_path):
    table = Table(tmp_path / "t", codecs.DATE)
    table.write({dt.date(1, 1, 1): "a", dt.date(9999, 12, 31): "b"}, "append")
    table.write({dt.date(1, 1, 1): None})
    assert table.rows() == {dt.date(9999, 12, 31): "b"}
