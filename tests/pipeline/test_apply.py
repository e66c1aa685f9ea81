"""Replicas follow the log: equal to the source at each frontier, on either path of a batch."""

import dataclasses
import json
import random
import uuid
from pathlib import Path

import pytest

from cdc import codecs
from cdc.codecs import TypePolicies
from cdc.errors import LakeError, LogError
from cdc.lake import CommitNote
from cdc.states import ERRORED, READY
from cdc.unsent import UNSENT
from spark_jobs import merge
from spark_jobs.apply import Applier
from spark_jobs.session import worker_session
from tests.support.lakes import Lake
from tests.support.loggen import Delete, Insert, LogGen, Truncate, Update
from tests.support.schemas import all_types_row, all_types_schema, column, table_schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DOCS = table_schema(
    column(1, "id", codecs.TEXT, not_null=True),
    ("title", codecs.TEXT),
    column(3, "price", codecs.NUMERIC, type="numeric(10,2)"),
    ("body", codecs.TEXT),
    table="docs",
)
PAIRS = table_schema(
    ("a", codecs.INT4), ("b", codecs.TEXT), ("n", codecs.NUMERIC), table="pairs", key=("b", "a")
)
ODD = ("it's", "back\\slash", "${spark.master}", "new\nline", "%s", "😀 é", '"', "", "a,b;c", "--")


@pytest.fixture
def gen(stack, topic_prefix):
    with LogGen(stack.bootstrap, topic_prefix) as made:
        yield made


class Application:
    """Random transactions on DOCS and PAIRS."""

    def __init__(self, gen, seed):
        self.gen = gen
        self.rng = random.Random(seed)
        self.docs, self.pairs = {}, {}

    def doc(self, key):
        text = uuid.UUID(int=self.rng.getrandbits(128)).hex.encode()
        price = b"%d.%02d" % (self.rng.randrange(-999, 999), self.rng.randrange(100))
        body = self.rng.choice((None, b"", text * 3, "é😀".encode()))
        return [key.encode(), text, self.rng.choice((None, price)), body]

    def pair(self, key):
        return [b"%d" % key[1], key[0].encode(), b"%d.50" % self.rng.randrange(10**12)]

    def transaction(self, size, truncates=True):
        changes: list[object] = []
        for _ in range(size):
            on_docs = self.rng.random() < 0.6
            table, rows, make = (
                (DOCS.id, self.docs, self.doc) if on_docs else (PAIRS.id, self.pairs, self.pair)
            )
            key = self._key(on_docs)
            other = self._key(on_docs)
            op = self.rng.choices("iudkt", (6, 6, 3, 3, 0.1 if truncates else 0))[0]
            if op == "t":
                rows.clear()
                changes.append(Truncate(table))
            elif key not in rows:
                rows[key] = make(key)
                changes.append(Insert(table, rows[key]))
            elif op == "d":
                changes.append(Delete(table, rows.pop(key)))
            elif op == "k" and other not in rows:
                changes.append(self._update(table, rows, key, other, make(other)))
            else:
                changes.append(self._update(table, rows, key, key, make(key)))
        if changes:
            self.gen.transaction(*changes)

    def _key(self, on_docs):
        if on_docs:
            return self.rng.choice(ODD) + str(self.rng.randrange(8))
        return self.rng.choice(ODD), self.rng.randrange(6)

    def _update(self, table, rows, old_key, new_key, new):
        old = rows.pop(old_key)
        rows[new_key] = new
        if table == DOCS.id and self.rng.random() < 0.6:
            whole = [*new[:3], old[3]]
            rows[new_key] = whole
            sent = [*new[:3], UNSENT]
            # What a re-read finds is from the future: whoever holds the row must not take it.
            reread = [*new[:3], b"from the future"] if self.rng.random() < 0.5 else None
            return Update(table, old, sent, reread)
        return Update(table, old, new)


def test_replicas_equal_the_source_after_every_batch(spark, gen, tmp_path):
    gen.create([DOCS, PAIRS], partitions=2)
    app = Application(gen, 7)
    keys = [f"{odd}{i}" for odd in ODD for i in range(4)]
    app.docs = {key: app.doc(key) for key in keys}
    app.pairs = {(odd, i): app.pair((odd, i)) for odd in ODD for i in range(3)}
    gen.load({DOCS.id: list(app.docs.values()), PAIRS.id: list(app.pairs.values())})
    small, large = Lake(spark, gen, tmp_path), Lake(spark, gen, tmp_path, small_range=0, few_keys=0)
    # The first writes by itself, and meets Spark's deletion vectors at the end.
    overwriting = Lake(spark, gen, tmp_path, most_rewritten=0)
    actions = set()
    for lake in (small, small, overwriting, large, small):
        for _ in range(12):
            app.transaction(app.rng.randrange(1, 9), truncates=lake is not large)
        actions |= {r.action for r in lake.apply().values()}
        lake.assert_same()
    assert {"overwrite", "merge"} <= actions or {"replace", "merge"} <= actions
    before = {id: small.replica(id).version for id in gen.tables}
    gen.keepalive()
    results = small.apply().values()
    assert {r.action for r in results} == {"current"}
    assert {r.position for r in results} == {gen.position}
    assert {id: small.replica(id).version for id in gen.tables} == before


def test_first_batches_and_every_type(spark, gen, tmp_path):
    everything = all_types_schema(table="everything")
    empty = table_schema(("Odd name, (x)", codecs.DATE), table="Empty", key=("Odd name, (x)",))
    gen.create([everything, empty])
    nulls: list[object] = [None] * len(everything.columns)
    nulls[everything.column_names.index("id")] = b"8"
    gen.load({everything.id: [all_types_row(), nulls]})
    lake = Lake(spark, gen, tmp_path)
    results = lake.apply()
    assert results["shop.public.everything"].action == "append"
    assert results["shop.public.Empty"].action == "empty"
    lake.assert_same()
    replica = lake.replica(everything.id)
    assert replica.position == gen.position
    assert replica.ends == gen.ends[gen.tables[everything.id].topic]
    assert str(replica.app).startswith("cdc/1/shop/") and str(replica.app).endswith("/g1/i1/e0")
    # A column that is new, a date as key, values of the other path.
    wider = gen.alter(
        table_schema(*everything.columns, ("at", codecs.TIMESTAMP), table="everything", version=2)
    )
    row = [*all_types_row(), b"2013-01-01 05:00:00"]
    row[everything.column_names.index("id")] = b"9"
    gen.transaction(Insert(wider.id, row), Insert(empty.id, [b"2013-01-01"]))
    large = Lake(spark, gen, tmp_path, small_range=0)
    large.apply()
    gen.transaction(Delete(empty.id, [b"2013-01-01"]), Insert(empty.id, [b"0001-12-31"]))
    large.apply()
    large.assert_same()
    assert large.replica(wider.id).columns[-1] == "at"
    assert one_commit(large.path(empty.id)) == {"commitInfo", "txn", "add", "remove"}


def one_commit(path):
    """Kinds of action in the newest commit of a table."""
    newest = max(Path(path, "_delta_log").glob("*.json"))
    return {kind for line in newest.read_text().splitlines() for kind in json.loads(line)}


def test_a_table_that_fails_does_not_stop_the_others(spark, gen, tmp_path):
    times = table_schema(("id", codecs.INT4), ("at", codecs.TIMESTAMP), table="times")
    strict = {"policies": lambda source, table: TypePolicies({"timestamp": "error"})}
    gen.create([times, PAIRS])
    gen.load({PAIRS.id: [[b"1", b"x", None]]})
    lake = Lake(spark, gen, tmp_path, **strict)
    lake.apply()
    gen.transaction(Insert(times.id, [b"1", b"infinity"]), Insert(PAIRS.id, [b"2", b"x", None]))
    for small in (50_000, 0):
        applier = Applier(
            spark, lake.address, dataclasses.replace(lake.settings, small_range=small)
        )
        results = {r.table: r for r in applier.run_pass(["shop"])}
        applier.close()
        error = results["shop.public.times"].error
        assert error is not None
        assert (error.code, error.table) == ("value_out_of_range", "shop.public.times")
        assert "column at" in error.message and "infinity" not in error.message.split(";")[0]
        lake.assert_same(PAIRS.id)
    # It is tried again, and goes on once the value is mended.
    gen.transaction(Update(times.id, [b"1", b"infinity"], [b"1", b"2013-01-01 00:00:00"]))
    lake.apply()
    lake.assert_same()


def test_what_somebody_else_wrote_stops_the_table(spark, gen, tmp_path, monkeypatch):
    gen.create([PAIRS])
    gen.load({PAIRS.id: [[b"1", b"x", None]]})
    lake = Lake(spark, gen, tmp_path)
    lake.apply()
    session = worker_session(spark)
    path = lake.path(PAIRS.id)
    gen.transaction(Insert(PAIRS.id, [b"2", b"x", None]))
    # A commit between plan and write: the batch is thrown away, the next one is planned anew.
    checked = merge._check_unchanged
    properties = f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('a'='{{}}')"

    def meanwhile(replica, layout):
        session.sql(properties.format(1))
        checked(replica, layout)

    monkeypatch.setattr(merge, "_check_unchanged", meanwhile)
    with pytest.raises(LakeError) as changed:
        lake.apply()
    assert changed.value.code == "progress_changed"
    monkeypatch.undo()
    lake.apply()
    lake.assert_same()
    # A RESTORE keeps the recorded progress: applying on would lose what it took away.
    version = lake.replica(PAIRS.id).version
    session.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version - 2}")
    gen.transaction(Insert(PAIRS.id, [b"3", b"x", None]))
    for _ in range(2):
        with pytest.raises(LakeError) as restored:
            lake.apply()
        assert restored.value.code == "restored_by_hand"
        assert "cdc rebuild shop.public.pairs" in str(restored.value)


def test_topics_that_are_not_as_they_were(spark, gen, tmp_path):
    gen.create([PAIRS])
    gen.load({PAIRS.id: [[b"1", b"x", None]]})
    lake = Lake(spark, gen, tmp_path)
    lake.apply()
    gen.transaction(Insert(PAIRS.id, [b"2", b"x", None]))
    topic = gen.tables[PAIRS.id].topic
    # A replica older than the window of history may lack what compaction took.
    replica = lake.replica(PAIRS.id)
    newest = max(Path(replica.path, "_delta_log").glob("*.json"))
    text = newest.read_text()
    aged = CommitNote(
        replica.note.position, replica.note.commit_us, replica.note.ends, "apply", 1000
    )
    old = json.dumps(replica.note.to_json())
    assert old in text
    newest.write_text(text.replace(old, json.dumps(aged.to_json())))
    with pytest.raises(LakeError) as compacted:
        lake.apply()
    assert compacted.value.code == "history_compacted"
    newest.write_text(text)
    gen.set_state(PAIRS.id, ERRORED, last_good=None)
    assert lake.apply() == {}
    gen.set_state(PAIRS.id, READY)
    gen.admin.delete_topics([topic])
    gen.create([PAIRS])
    gen.set_state(PAIRS.id, READY, topic_id=replica.app.topic_id)
    with pytest.raises(LogError) as recreated:
        lake.apply()
    assert recreated.value.code == "topic_recreated"
    assert lake.replica(PAIRS.id).position == replica.position


def test_a_backlog_is_written_in_parts(spark, gen, tmp_path):
    gen.create([PAIRS])
    gen.load({PAIRS.id: []})
    lake = Lake(spark, gen, tmp_path, max_records=25)
    lake.apply()
    first = lake.replica(PAIRS.id).version
    for i in range(40):
        gen.transaction(Insert(PAIRS.id, [b"%d" % i, b"x", None]))
    lake.apply()
    lake.assert_same()
    assert lake.replica(PAIRS.id).position == gen.position
    assert lake.replica(PAIRS.id).version >= first + 4
