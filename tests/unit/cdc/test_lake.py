"""Application ids, notes in commits, and the lock of a lake."""

import json
import multiprocessing
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import LakeError
from cdc.lake import APP_PROPERTY, AppId, CommitNote, app_id, open_replica
from cdc.lakelock import LOCK_NAME, hold_lake_lock, lock_holder
from cdc.position import Position, frontier

APP = app_id("shop", "6V3zkacqRVCAhaTv43zpoQ", 2, 1, 0)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 0xFFFF))
def test_app_ids_round_trip(generation, incarnation, epoch):
    text = app_id("shop", "a-_b", generation, incarnation, epoch)
    assert AppId.parse(text) == AppId("shop", "a-_b", generation, incarnation, epoch)


def test_the_app_id_is_as_pinned():
    assert APP == "cdc/1/shop/6V3zkacqRVCAhaTv43zpoQ/g2/i1/e0"
    for text in ("", "cdc/2/shop/x/g1/i1/e0", "cdc/1/shop/x/g1/i1", APP + "/x"):
        with pytest.raises(LakeError):
            AppId.parse(text)


def test_notes_round_trip_and_ignore_what_is_not_ours():
    note = CommitNote(Position(1, 500, 0), 17, {0: 9, 3: 1}, "apply", 123)
    raw = json.loads(note.to_json())
    assert raw["position"] == "0001-00000000000001F4-00000000" and raw["ends"] == {"0": 9, "3": 1}
    assert CommitNote.from_json(note.to_json()) == note
    assert CommitNote.from_json(json.dumps({**raw, "more": 1})) == note
    for text in (None, "", "{}", "x", "[]", '"a"', json.dumps({**raw, "v": 2})):
        assert CommitNote.from_json(text) is None


SCHEMA = {
    "type": "struct",
    "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
}


class Log:
    """Writes a Delta log by hand: deltalake's writer refuses properties that it does not know."""

    def __init__(self, folder, properties):
        self.path = str(folder)
        self.folder = folder / "_delta_log"
        self.folder.mkdir(parents=True)
        self.version = -1
        metadata = {
            "id": "11111111-2222-3333-4444-555555555555",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(SCHEMA),
            "partitionColumns": [],
            "configuration": properties,
            "createdTime": 1,
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        self.commit("CREATE TABLE", {"protocol": protocol}, {"metaData": metadata})

    def commit(self, operation, *actions, note=None, read=None):
        info = {"timestamp": 1, "operation": operation, "operationParameters": {}}
        if self.version >= 0:
            info["readVersion"] = self.version if read is None else read
        if note is not None:
            info["userMetadata"] = note
        self.version += 1
        lines = [{"commitInfo": info}, *actions]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / f"{self.version:020}.json").write_text(text)

    def apply(self, lsn, **more):
        note = CommitNote(frontier(0, lsn), 1, {0: lsn}, "apply", 1).to_json()
        txn = {"txn": {"appId": APP, "version": lsn, "lastUpdated": 1}}
        self.commit("MERGE", txn, note=note, **more)


def opened(log, **options):
    replica = open_replica(log.path, table="shop.public.orders", **options)
    assert replica is not None
    return replica


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "t", {APP_PROPERTY: APP})


def test_a_replica_tells_its_progress_at_each_version(log, tmp_path):
    assert open_replica(tmp_path / "nothing") is None
    assert opened(log).position is None and opened(log).ends is None
    log.apply(10)
    log.apply(20)
    replica = opened(log)
    assert (replica.version, replica.position, replica.ends) == (2, frontier(0, 20), {0: 20})
    assert replica.app == AppId.parse(APP) and replica.columns == ("id",)
    earlier = opened(log, version=1)
    assert (earlier.version, earlier.position, earlier.ends) == (1, frontier(0, 10), {0: 10})
    # Commits without a note, as other tools make them, hide nothing.
    for _ in range(30):
        log.commit("OPTIMIZE")
    replica = opened(log)
    assert (replica.version, replica.position, replica.ends) == (32, frontier(0, 20), {0: 20})


def test_a_hint_is_not_taken_from_another_position(log):
    log.apply(10)
    other = CommitNote(frontier(0, 99), 1, {0: 99}, "apply", 1).to_json()
    log.commit("WRITE", note=other)
    assert (opened(log).position, opened(log).ends) == (frontier(0, 10), None)


def test_a_restore_by_somebody_else_is_refused(log):
    for lsn in (10, 20, 30):
        log.apply(lsn)
    log.commit("RESTORE")
    for _ in range(12):
        log.commit("OPTIMIZE")
    with pytest.raises(LakeError) as refused:
        opened(log)
    assert refused.value.code == "restored_by_hand"
    assert refused.value.remedy == "cdc rebuild shop.public.orders --from-offset 0"
    assert opened(log, check_by_hand=False).version == log.version
    # A commit of ours that was planned before the restore does not hide it.
    log.apply(40, read=3)
    with pytest.raises(LakeError):
        opened(log)
    # A rebuild that was planned after it mends it.
    log.apply(50)
    assert opened(log).position == frontier(0, 50)


@pytest.mark.parametrize("operation", ["WRITE", "DELETE", "MERGE", "UPDATE"])
def test_rows_written_by_somebody_else_are_refused(log, operation):
    log.apply(10)
    for harmless in ("OPTIMIZE", "SET TBLPROPERTIES", "ADD COLUMNS", "VACUUM END"):
        log.commit(harmless)
    assert opened(log).position == frontier(0, 10)
    log.commit(operation)
    log.commit("OPTIMIZE")
    with pytest.raises(LakeError) as refused:
        opened(log)
    assert refused.value.code == "changed_by_hand"
    assert operation in refused.value.message


def test_a_path_that_deltalake_reads_as_another_is_refused(tmp_path):
    with pytest.raises(LakeError) as refused:
        opened(Log(tmp_path / "100%25", {APP_PROPERTY: APP}))
    assert refused.value.code == "lake_unreadable"


def test_a_delta_table_that_is_not_ours_is_refused(tmp_path):
    with pytest.raises(LakeError) as refused:
        opened(Log(tmp_path / "t", {}))
    assert refused.value.code == "not_a_replica"


def _hold(folder, held, leave):
    with hold_lake_lock(folder):
        held.set()
        leave.wait(30)


def test_one_process_holds_the_lake(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path), held, leave))
    assert lock_holder(tmp_path) is None
    other.start()
    assert held.wait(30)
    assert lock_holder(tmp_path) == other.pid
    with pytest.raises(LakeError) as refused, hold_lake_lock(tmp_path):
        pass
    assert refused.value.code == "lake_locked"
    assert str(other.pid) in refused.value.message
    leave.set()
    other.join(30)
    with hold_lake_lock(tmp_path):
        assert lock_holder(tmp_path) == os.getpid()


def test_the_jvm_of_a_dead_holder_is_waited_for(tmp_path):
    code = "import time; time.sleep(60)"
    jvm = subprocess.Popen([sys.executable, "-c", code])
    try:
        with hold_lake_lock(tmp_path) as lock:
            lock.record_jvm(jvm.pid)
        # As if another process had held it.
        path = tmp_path / LOCK_NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 1}))
        with pytest.raises(LakeError) as refused, hold_lake_lock(tmp_path, jvm_timeout=0.3):
            pass
        assert refused.value.code == "lake_locked"
    finally:
        jvm.kill()
        jvm.wait(10)
    with hold_lake_lock(tmp_path, jvm_timeout=0.3):
        pass
