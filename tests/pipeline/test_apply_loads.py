"""Apply and loads: nothing before Ready, and a new generation when a newer load is switched in."""

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from structlog.testing import capture_logs

from cdc import codecs
from cdc.errors import LakeError
from cdc.position import frontier
from cdc.states import ADDED, CATCHING_UP, READY, SNAPSHOTTING
from cdc.unsent import UNSENT
from spark_jobs import generation
from spark_jobs.apply import Applier
from tests.support.lakes import Lake
from tests.support.loggen import Delete, Insert, LogGen, Truncate, Update
from tests.support.schemas import column, table_schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ITEMS = table_schema(
    column(1, "id", codecs.INT4, not_null=True), ("t", codecs.TEXT), ("n", codecs.NUMERIC)
)
PAIRS = table_schema(("a", codecs.INT4), ("b", codecs.TEXT), table="pairs", key=("b", "a"))


def item(i, text=b"one"):
    return [b"%d" % i, text, b"1.0"]


@pytest.fixture
def lake(spark, stack, topic_prefix, tmp_path):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        gen.create([ITEMS, PAIRS], partitions=2)
        yield Lake(spark, gen, tmp_path)


def loaded(lake):
    lake.gen.load({ITEMS.id: [item(i) for i in range(50)], PAIRS.id: [[b"1", b"x"], [b"2", b"y"]]})
    lake.apply()
    return lake.gen


def at_version(path, version):
    """Ids of ITEMS as they were, read as another engine does."""
    table = DeltaTable(path, version=version)
    found = QueryBuilder().register("t", table).execute("select id from t").read_all()
    return sorted(pa.table(found).column(0).to_pylist())


@pytest.mark.parametrize("state", [ADDED, SNAPSHOTTING, CATCHING_UP])
def test_a_table_that_is_not_ready_is_left_alone(lake, state):
    lake.gen.set_state(ITEMS.id, state, ready_from=None)
    with capture_logs() as logs:
        assert lake.apply() == {}
    assert logs == []
    assert not Path(lake.folder, "shop").exists()


def test_a_table_is_left_alone_below_where_it_is_ready_from(lake):
    gen = lake.gen
    later = frontier(0, gen.lsn + 0x1000)
    gen.load({ITEMS.id: [item(1)], PAIRS.id: [[b"1", b"x"]]})
    gen.set_state(ITEMS.id, READY, ready_from=later)
    with capture_logs() as logs:
        assert set(lake.apply()) == {"shop.public.pairs"}
    assert not [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    gen.keepalive(0x1000)
    lake.apply()
    lake.assert_same()


def test_a_newer_load_is_taken_over_in_one_commit(lake):
    gen = loaded(lake)
    # Rows 40 to 49 vanish without an event, row 7 differs, rows 50 to 59 are new.
    kept = [item(i, b"seven" if i == 7 else b"one") for i in [*range(40), *range(50, 60)]]
    gen.begin_load(ITEMS, kept)
    # Until the switch the replica follows the old topic.
    gen.transaction(Insert(ITEMS.id, item(900)))
    assert lake.apply()["shop.public.orders"].action == "overwrite"
    lake.assert_same()
    gen.transaction(Truncate(ITEMS.id), Insert(ITEMS.id, item(901)))
    old = lake.replica(ITEMS.id)
    gen.switch(ITEMS.id)
    gen.transaction(Update(ITEMS.id, item(3), [b"3", b"three", UNSENT]), Delete(ITEMS.id, item(4)))
    with capture_logs() as logs:
        results = lake.apply()
    new = lake.replica(ITEMS.id)
    assert results["shop.public.orders"].action == "rebuild"
    assert results["shop.public.orders"].position == new.position == gen.position
    assert [(e["table"], e["load"]) for e in logs if e["event"] == "new_load"] == [
        ("shop.public.orders", 2)
    ]
    assert results["shop.public.pairs"].action == "current"
    lake.assert_same()
    assert len(lake.rows(ITEMS.id)) == 49
    # One commit holds the new rows, the new cdc.app with its progress, and the old rows' end.
    assert new.version == old.version + 1
    assert new.app.topic_id == gen.tables[ITEMS.id].topic_id != old.app.topic_id
    assert new.app.generation == old.app.generation + 1
    text = Path(new.path, "_delta_log", f"{new.version:020}.json").read_text()
    by_kind = {k: v for line in text.splitlines() for k, v in json.loads(line).items()}
    assert by_kind["metaData"]["configuration"]["cdc.app"] == str(new.app)
    assert (by_kind["txn"]["appId"], by_kind["txn"]["version"]) == (str(new.app), gen.lsn)
    assert {"add", "remove"} <= by_kind.keys()
    assert not list(Path(new.path).glob("_g*"))
    # Who reads the old version still can, and apply goes on from the new one.
    assert at_version(new.path, old.version) == [*range(50), 900]
    gen.transaction(Insert(ITEMS.id, item(1000)), Delete(ITEMS.id, item(3)))
    assert lake.apply()["shop.public.orders"].action == "overwrite"
    lake.assert_same()
    # And once more, by the other fold.
    gen.begin_load(ITEMS, [item(5)])
    gen.switch(ITEMS.id)
    large = Lake(lake.spark, gen, lake.folder, small_range=0)
    assert large.apply()["shop.public.orders"].action == "rebuild"
    large.assert_same()


@pytest.mark.full
def test_a_newer_load_has_other_columns(lake):
    gen = loaded(lake)
    changed = table_schema(
        column(1, "id", codecs.INT8, not_null=True), column(3, "n"), column(4, "odd name")
    )
    gen.begin_load(changed, [[b"1", b"text", b"x"], [b"2", None, b"y"]])
    gen.switch(ITEMS.id)
    lake.apply()
    lake.assert_same()
    assert "t" not in lake.replica(ITEMS.id).columns
    # Back to names that need no mapping.
    gen.begin_load(dataclasses.replace(ITEMS, load=3), [item(1)])
    gen.switch(ITEMS.id)
    lake.apply()
    lake.assert_same()
    gen.transaction(Insert(ITEMS.id, item(2)))
    lake.apply()
    lake.assert_same()
    # Another key, which the replica holds in a column of its own.
    gen.begin_load(dataclasses.replace(ITEMS, load=4, key=("t", "id")), [item(1), item(1, b"two")])
    gen.switch(ITEMS.id)
    lake.apply()
    lake.assert_same()
    gen.transaction(Insert(ITEMS.id, item(2)), Delete(ITEMS.id, item(1, b"two")))
    lake.apply()
    lake.assert_same()


def test_apply_that_dies_while_it_takes_a_load_over(lake, monkeypatch):
    gen = loaded(lake)
    before = lake.replica(ITEMS.id)
    gen.begin_load(ITEMS, [item(1), item(77)])
    gen.switch(ITEMS.id)

    class Died(BaseException):
        pass

    for point in ("rebuild_side_created", "rebuild_side_written", "rebuild_swapped"):

        def die(name, point=point):
            if name == point:
                raise Died

        monkeypatch.setattr(generation, "failpoint", die)
        applier = Applier(lake.spark, lake.address, lake.settings)
        with pytest.raises(Died):
            applier.run_pass(["shop"])
        applier.close()
        monkeypatch.undo()
        swapped = point == "rebuild_swapped"
        assert lake.replica(ITEMS.id).version == before.version + swapped
        if not swapped:
            assert at_version(before.path, before.version) == list(range(50))
    assert lake.apply()["shop.public.orders"].action == "current"
    lake.assert_same()


def test_another_topic_that_no_load_explains_is_an_error(lake):
    gen = loaded(lake)
    before = lake.replica(ITEMS.id)
    # A newer load, but the replica is of no load of this table.
    gen.set_load(ITEMS.id, 1, topic_id="somebody-elses", state="done")
    gen.begin_load(ITEMS, [item(1)])
    gen.switch(ITEMS.id)
    with pytest.raises(LakeError) as other:
        lake.apply()
    assert other.value.code == "other_topic"
    assert "cdc rebuild shop.public.orders" in str(other.value.remedy)
    assert lake.replica(ITEMS.id).version == before.version
