"""The broker compacts while a table is loaded: its topic, control, and never the spool."""

import threading

import pytest

from cdc.log.admin import LogAdmin
from cdc.names import TableId
from cdc.states import CATCHING_UP, DONE, READY
from connectors.postgres.handover import Handover
from tests.loads.test_loads import (
    loading,  # noqa: F401 - a fixture
    loads_of,
    wait_copied,
    wait_state,
)
from tests.support.capturing import assert_log_is_source
from tests.support.compaction import Log, hasten

pytestmark = pytest.mark.timeout(240)

A = TableId("public", "a")


def test_compaction_while_a_table_is_loaded(loading, monkeypatch):  # noqa: F811
    source, gate = loading(["a"])
    log, admin = Log(source), LogAdmin(source.bootstrap)
    may_end = threading.Event()
    replay = Handover.replay
    # Replays all the time, and does not hand over.
    monkeypatch.setattr(
        Handover,
        "replay",
        lambda self, load, until: replay(self, load, until) and may_end.is_set(),
    )

    def write():
        source.execute(
            "update a set n = n + 1 where id in (1, 2, 38, 39)",
            "insert into a values (100, 1)",
            "delete from a where id in (3, 100)",
        )

    with source.running():
        wait_copied(source, ["a"], 0)
        load, control = loads_of(source.control(), "a")[1], source.settings.control_topic
        gate.open_to(2)
        wait_copied(source, ["a"], 2)
        write()
        gate.open_to(10_000)
        wait_state(source, "a", CATCHING_UP)

        def overtaken():
            """Rows of chunks, the first and the last, behind which events were replayed."""
            return {
                offset: key
                for offset, (key, value) in log.superseded(load.topic).items()
                if value is not None and b'"op":"r"' in value
            }

        keys = {b'{"id":%d}' % id for id in (1, 2, 3, 38, 39)}
        source.wait_until(lambda: set(overtaken().values()) == keys, 30, "the replay")
        rows, marks = overtaken().keys(), log.superseded(control).keys()
        spooled = log.there(load.spool)
        hasten(source.bootstrap, [load.topic, load.spool, control])
        log.wait_removed(load.topic, rows, write)
        log.wait_removed(control, marks, write)
        # What waits is all there, whatever else is set for its topic.
        assert admin.describe(load.spool).cleanup_policy == "delete"
        assert spooled and spooled.items() <= log.there(load.spool).items()
        assert source.control().tables[A].state == CATCHING_UP
    # A capture that knows what the compacted topics tell goes on.
    with source.running():
        write()
        may_end.set()
        source.wait_ready(60)
        source.caught_up()
        assert_log_is_source(source, ["a"])
        assert not admin.exists(load.spool)
        assert [record.state for record in loads_of(source.control(), "a").values()] == [DONE]
        # And what was replayed is compacted in its turn.
        replayed = {
            offset
            for offset, (key, value) in log.there(load.topic).items()
            if key in keys and value is not None
        }
        write()
        log.wait_removed(load.topic, replayed, write)
        source.caught_up()
        assert_log_is_source(source, ["a"])
    assert source.control().tables[A].state == READY
