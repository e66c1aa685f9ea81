"""Every record of the log is, byte for byte, as in tests/cases/wire."""

import json

import orjson
import pytest

from cdc.control import ControlState, LoadRecord, OffsetRecord, SourceRecord, TableRecord
from cdc.envelope import parse_record
from cdc.frontier import FrontierRecord
from cdc.schema import TableSchema
from tests.support.golden import FILES, FOLDER


def golden(name):
    return json.loads((FOLDER / name).read_text())


@pytest.mark.parametrize("name", FILES)
def test_records_are_as_pinned(name):
    assert FILES[name]() == golden(name)


def test_table_records_read_back():
    for records in golden("table_records.json").values():
        for raw in records:
            headers = [(name, text.encode()) for name, text in raw["headers"]]
            value = raw["value"]
            record = parse_record("t", 0, 5, raw["key"].encode(), value and value.encode(), headers)
            assert str(record.position) == dict(raw["headers"])["cdc.position"]
            if value is None:
                assert record.op == "tombstone"
                continue
            envelope = orjson.loads(value)
            assert record.op == envelope["op"]
            assert record.after == envelope["after"]
            assert envelope["source"]["position"] == str(record.position)
            assert list(record.unchanged) == envelope["source"].get("unchanged", [])
            image = record.before if record.op == "d" else record.after
            key = orjson.loads(raw["key"])
            assert image is not None
            assert {name: image[name] for name in key} == key


def test_control_records_read_back():
    state = ControlState()
    for raw in golden("control_records.json").values():
        state.apply(raw["key"].encode(), raw["value"].encode())
    written = {(r["key"], r["value"]) for r in golden("control_records.json").values()}
    kept = [state.source, state.offset, *state.tables.values(), *state.loads.values()]
    for record in kept:
        assert isinstance(record, SourceRecord | OffsetRecord | TableRecord | LoadRecord)
        key, value = record.to_key_value()
        assert (key.decode(), value.decode()) in written
    assert [s.version for by in state.schemas.values() for s in by.values()] == [2, 3, 4]
    for raw in golden("control_records.json").values():
        if raw["key"].startswith('["schema"'):
            _, _, _, load, version = json.loads(raw["key"])
            read = TableSchema.from_record(load, version, json.loads(raw["value"]))
            assert read.to_record() == json.loads(raw["value"])
    assert len(state.truncates) == 1


def test_a_load_record_of_before_chunks_reads():
    state = ControlState()
    state.apply(
        b'["load","public","orders",1]',
        b'{"v":1,"topic":"t","topic_id":"u","kind":"exported","consistent_point":"0/16B3780",'
        b'"state":"done","rows":10,"chunks":2,"slot":"s"}',
    )
    (load,) = state.loads.values()
    assert (load.rows, load.done, load.spool, load.unfinished) == (10, (), None, False)


def test_frontier_records_read_back():
    for value in golden("frontier_records.json").values():
        assert FrontierRecord.from_value(value.encode()).to_value().decode() == value
