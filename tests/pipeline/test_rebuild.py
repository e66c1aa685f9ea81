"""A rebuild folds the topic from offset zero, and swaps the replica in one commit."""

import json
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc import codecs
from cdc.errors import LakeError
from cdc.names import TableId
from cdc.unsent import UNSENT
from spark_jobs import generation
from spark_jobs.apply import Applier
from spark_jobs.rebuild import rebuild_table
from spark_jobs.session import worker_session
from tests.support.lakes import Lake
from tests.support.loggen import Delete, Insert, LogGen, Truncate, Update
from tests.support.schemas import column, table_schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ITEMS = table_schema(
    column(1, "id", codecs.INT4, not_null=True), ("t", codecs.TEXT), ("n", codecs.NUMERIC)
)
PAIRS = table_schema(("a", codecs.INT4), ("b", codecs.TEXT), table="pairs", key=("b", "a"))


@pytest.fixture
def lake(spark, stack, topic_prefix, tmp_path):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        gen.create([ITEMS, PAIRS], partitions=2)
        gen.load(
            {
                ITEMS.id: [[b"%d" % i, b"one", b"1.0"] for i in range(50)],
                PAIRS.id: [[b"1", b"x"], [b"2", b"y"]],
            }
        )
        made = Lake(spark, gen, tmp_path)
        made.apply()
        yield made


def at_version(path, version):
    """Ids of ITEMS as they were, read as another engine does."""
    table = DeltaTable(path, version=version)
    found = QueryBuilder().register("t", table).execute("select id from t").read_all()
    return sorted(pa.table(found).column(0).to_pylist())


def test_one_commit_swaps_and_apply_goes_on(lake):
    gen = lake.gen
    gen.transaction(
        Update(ITEMS.id, [b"1", b"one", b"1.0"], [b"1", b"two", UNSENT]),
        Update(ITEMS.id, [b"2", b"one", b"1.0"], [b"102", b"moved", UNSENT]),
        Delete(ITEMS.id, [b"3", b"one", b"1.0"]),
    )
    old = lake.replica(ITEMS.id)
    steps = []
    result = lake.rebuild(ITEMS.id, on_progress=lambda progress: steps.append(progress["step"]))
    assert steps == ["folding the log", "writing the new table", "swapping"]
    assert result["rows"] == 49 and result["generation"] == 2
    new = lake.replica(ITEMS.id)
    assert new.version == old.version + 1
    assert new.position == gen.position and new.note.kind == "rebuild"
    assert str(new.app).endswith("/g2/i1/e0") and new.app.topic_id == old.app.topic_id
    lake.assert_same()
    # One commit holds the property, the progress, the new rows and the end of the old ones.
    log = Path(new.path, "_delta_log", f"{new.version:020}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    by_kind = {kind: value for action in actions for kind, value in action.items()}
    assert by_kind["metaData"]["configuration"]["cdc.app"] == str(new.app)
    assert by_kind["metaData"]["configuration"]["delta.enableDeletionVectors"] == "true"
    assert by_kind["txn"]["appId"] == str(new.app)
    assert by_kind["txn"]["version"] == gen.position.lsn
    assert {"add", "remove", "commitInfo"} <= by_kind.keys()
    removed = {action["remove"]["path"] for action in actions if "remove" in action}
    assert len(removed) == len(DeltaTable(new.path, version=old.version).file_uris())
    assert not list(Path(new.path).glob("_g*"))
    # The old version is still there for who reads it, and apply goes on from the new one.
    assert at_version(new.path, old.version) == list(range(50))
    gen.transaction(Insert(ITEMS.id, [b"900", b"later", None]), Insert(PAIRS.id, [b"9", b"z"]))
    lake.apply()
    lake.assert_same()
    assert lake.replica(ITEMS.id).app == new.app
    # Again, by the other fold, with a stored key and a truncate.
    gen.transaction(Truncate(PAIRS.id), Insert(PAIRS.id, [b"5", b"it's"]))
    large = Lake(lake.spark, gen, lake.folder, small_range=0)
    assert large.rebuild(PAIRS.id)["rows"] == 1
    large.apply()
    large.assert_same()


def test_a_rebuild_that_dies_leaves_the_old_table(lake, monkeypatch):
    gen = lake.gen
    gen.transaction(Insert(ITEMS.id, [b"77", b"new", None]))
    before = lake.replica(ITEMS.id)

    class Died(BaseException):
        pass

    for point in ("rebuild_side_created", "rebuild_side_written", "rebuild_swapped"):

        def die(name, point=point):
            if name == point:
                raise Died

        monkeypatch.setattr(generation, "failpoint", die)
        with pytest.raises(Died):
            lake.rebuild(ITEMS.id)
        monkeypatch.undo()
        assert list(Path(before.path).glob("_g2"))
        if point == "rebuild_swapped":
            lake.assert_same(ITEMS.id)
        else:
            assert lake.replica(ITEMS.id).version == before.version
            assert lake.rows(ITEMS.id) != lake.expected(ITEMS.id)
    gen.transaction(Insert(ITEMS.id, [b"78", b"new", None]))
    assert lake.rebuild(ITEMS.id)["generation"] == 3
    lake.assert_same(ITEMS.id)
    assert not list(Path(before.path).glob("_g*"))


def test_apply_waits_while_a_table_is_rebuilt(lake, monkeypatch):
    gen = lake.gen
    applier = Applier(lake.spark, lake.address, lake.settings)
    reached, go_on = threading.Event(), threading.Event()

    def hold(name):
        if name == "rebuild_side_written":
            reached.set()
            assert go_on.wait(120)

    monkeypatch.setattr(generation, "failpoint", hold)
    thread = threading.Thread(target=rebuild_table, args=(applier, "shop", ITEMS.id))
    thread.start()
    try:
        assert reached.wait(300)
        gen.transaction(Insert(ITEMS.id, [b"500", b"x", None]), Insert(PAIRS.id, [b"7", b"z"]))
        results = {r.table: r.action for r in applier.run_pass(["shop"])}
        assert results == {"shop.public.pairs": "overwrite"}
    finally:
        go_on.set()
        thread.join(300)
    assert {r.action for r in applier.run_pass(["shop"])} == {"overwrite", "current"}
    applier.close()
    lake.assert_same()


@pytest.mark.full
def test_a_rebuild_mends_a_table_restored_by_hand(lake):
    gen = lake.gen
    gen.transaction(Insert(ITEMS.id, [b"77", b"new", None]))
    lake.apply()
    path = lake.path(ITEMS.id)
    worker_session(lake.spark).sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 1")
    with pytest.raises(LakeError) as restored:
        lake.apply()
    assert restored.value.code == "restored_by_hand"
    lake.rebuild(ITEMS.id)
    lake.apply()
    lake.assert_same()


def test_tables_that_are_loaded_or_not_there(lake):
    before = lake.replica(ITEMS.id)
    for state in ("Added", "Snapshotting", "CatchingUp"):
        lake.gen.set_state(ITEMS.id, state, ready_from=None)
        with pytest.raises(LakeError) as not_ready:
            lake.rebuild(ITEMS.id)
        assert (not_ready.value.code, not_ready.value.table) == ("not_ready", "shop.public.orders")
        assert state in not_ready.value.message
    with pytest.raises(LakeError) as not_there:
        lake.rebuild(TableId("public", "nothing"))
    assert not_there.value.code == "not_ready"
    assert lake.replica(ITEMS.id).version == before.version
