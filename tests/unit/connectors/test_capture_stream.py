"""The loop over one connection: what is dropped, grouped, committed and confirmed, and when."""

import json
from typing import Any

import pytest

from cdc import codecs
from cdc.errors import HistoryGap, LogError, SourceStopped
from cdc.frontier import FrontierRecord, LastTransaction
from cdc.position import frontier
from connectors.postgres import inserts
from connectors.postgres import stream as stream_module
from connectors.postgres.log_writer import LogPosition, LogWriter
from connectors.postgres.messages import Begin, Commit, Insert, Relation, RelationColumn, Truncate
from connectors.postgres.router import Router
from connectors.postgres.routes import RoutedTable
from connectors.postgres.stopping import StoppedAt, StopRequest
from connectors.postgres.stream import Stream
from connectors.postgres.stream_hooks import StreamHooks
from tests.support.pgoutput_encoder import encode, keepalive, read_status, xlog_data
from tests.support.schemas import table_schema
from tests.unit.connectors.test_capture_router import RELID, SETTINGS, FakeSource

SCHEMA = table_schema(("id", codecs.INT4), ("v", codecs.TEXT), lsn=1)
RELATION = Relation(
    RELID,
    "public",
    "orders",
    "d",
    (RelationColumn("id", codecs.INT4, -1, True), RelationColumn("v", codecs.TEXT, -1, False)),
)
FRONTIER, CONTROL = "frontier", "control"


class FakeProducer:
    """A log in memory: committed Kafka transactions as lists of (topic, key, value)."""

    def __init__(self, journal):
        self.committed: list[list[Any]] = []
        self.open: Any = None
        self.aborts = 0
        self.runs: list[int] = []
        self._next: dict[str, int] = {}
        self._journal = journal

    def begin(self):
        assert self.open is None
        self.open = []
        self._ends = {}

    def send(self, topic, partition, key, value, headers):
        self.open.append((topic, key, value))
        self._next[topic] = self._next.get(topic, 0) + 1
        self._ends[topic] = {partition: self._next[topic]}

    def send_all(self, topic, partitions, keys, values, headers):
        self.runs.append(len(keys))
        for record in zip(partitions, keys, values, headers, strict=True):
            self.send(topic, *record)
        return True

    def ends(self):
        return {topic: dict(parts) for topic, parts in self._ends.items()}

    def send_reported(self, topic, partition, key, value, headers=None):
        self.send(topic, partition, key, value, headers)
        return self._next[topic]

    def commit(self):
        self.committed.append(self.open)
        self.open = None
        self._journal.append(("commit", self.frontier_lsn()))

    def abort(self):
        self.open = None
        self.aborts += 1

    def frontiers(self):
        return [
            FrontierRecord.from_value(value)
            for group in self.committed
            for topic, _, value in group
            if topic == FRONTIER
        ]

    def frontier_lsn(self):
        found = self.frontiers()
        return found[-1].end_lsn if found else None

    def rows(self):
        """Ids of the committed rows, in order."""
        return [
            json.loads(key)["id"]
            for group in self.committed
            for topic, key, _ in group
            if topic == "t"
        ]


class FakeClient:
    """Gives batches, then asks the stream to stop; records what is sent to the server."""

    def __init__(self, journal, stop, batches):
        self._journal = journal
        self._stop = stop
        self._batches = list(batches)

    def read(self, timeout):
        if not self._batches:
            self._stop.request()
            return []
        return self._batches.pop(0)

    def send(self, data):
        self._journal.append(("flushed", read_status(data)[1]))


class Run:
    """One run of a stream over given batches."""

    def __init__(
        self,
        *batches,
        offset=1000,
        start=None,
        last=None,
        stop_before=None,
        frontier_stable=lambda: 1 << 60,
    ):
        self.journal: list[Any] = []
        self.stop = StopRequest()
        self.producer = FakeProducer(self.journal)
        client: Any = FakeClient(self.journal, self.stop, batches)
        self.writer = LogWriter(
            self.producer,  # type: ignore[arg-type]
            CONTROL,
            FRONTIER,
            LogPosition(
                frontier(0, offset), offset, "7", 1, "slot", last, 0, 5, {"t": {0: 0}, "u": {0: 3}}
            ),
        )
        self.router = Router(
            SETTINGS,
            0,
            {SCHEMA.id: RoutedTable(SCHEMA, "t", 1)},
            lambda *record: self.producer.send(*record),
            lambda *records: self.producer.send_all(*records),
            FakeSource(),
        )
        self.stream = Stream(
            client,
            offset if start is None else start,
            StreamHooks(self.stop, lambda: None, frontier_stable),
        )
        self.stop_before = stop_before

    def __call__(self):
        self.stream.run(self.router, self.writer, self.stop_before)
        return self


def wire(*messages):
    return [m if isinstance(m, bytes) else xlog_data(encode(m)) for m in messages]


def transaction(start, end, *ids, xid=7, commit_us=1_700_000_000_000_000):
    """A source transaction of inserts, relation included."""
    return wire(
        Begin(start, commit_us, xid),
        RELATION,
        *(Insert(RELID, (b"%d" % id, b"x")) for id in ids),
        Commit(start, end, commit_us),
    )


def run(*batches, **options):
    return Run(*batches, **options)()


# --- what is new ---


def test_a_commit_that_starts_exactly_at_the_frontier_is_new():
    done = run(transaction(1000, 1040, 1))
    assert done.producer.rows() == [1]
    assert done.producer.frontier_lsn() == 1040


def test_transactions_below_the_frontier_are_dropped():
    done = run(
        transaction(900, 950, 1) + transaction(950, 1000, 2) + transaction(1000, 1040, 3),
        start=900,
    )
    assert done.producer.rows() == [3]


def test_a_truncate_below_the_frontier_is_dropped_too():
    old = wire(Begin(900, 1, 7), RELATION, Truncate((RELID,), False, False), Commit(900, 1000, 1))
    done = run(old + transaction(1000, 1040, 3), start=900)
    assert [topic for topic, *_ in done.producer.committed[0]] == ["t", FRONTIER, CONTROL]


def test_a_relation_of_a_dropped_transaction_still_describes_later_ones():
    later = [data for data in transaction(1000, 1040, 3) if data != xlog_data(encode(RELATION))]
    assert run(transaction(900, 1000, 2) + later, start=900).producer.rows() == [3]


def test_what_comes_again_has_to_be_what_the_log_holds():
    last = LastTransaction(900, 7, 1_700_000_000_000_000)
    again = transaction(900, 1000, 1)
    assert run(again + transaction(1000, 1040, 2), start=900, last=last).producer.rows() == [2]
    for other in (
        transaction(900, 1000, 1, xid=8),
        transaction(900, 1000, 1, commit_us=1_700_000_000_000_001),
        transaction(900, 1010, 1),
        wire(keepalive(1000)),
        transaction(1000, 1040, 2),
    ):
        with pytest.raises(HistoryGap) as caught:
            run(other, start=900, last=last)
        assert caught.value.code == "history_diverged"


def test_nothing_has_to_come_again_below_the_slots_place():
    last = LastTransaction(900, 7, 1)
    assert run(transaction(1000, 1040, 2), start=950, last=last).producer.rows() == [2]


# --- confirming ---


def test_confirmed_only_after_kafka_has_committed():
    done = run(transaction(1000, 1040, 1), transaction(1040, 1100, 2))
    commits = [lsn for kind, lsn in done.journal if kind == "commit"]
    committed = 1000
    for kind, lsn in done.journal:
        if kind == "commit":
            committed = lsn or committed
        else:
            assert lsn <= committed
    assert commits[-1] == 1100
    assert done.journal[-1] == ("flushed", 1100)


def test_nothing_is_confirmed_that_readers_of_the_log_do_not_see_yet():
    looks: list[int] = []

    def frontier_stable():
        assert ("flushed", 1040) not in done.journal
        looks.append(1)
        return 0 if len(looks) < 4 else 1 << 60

    done = Run(transaction(1000, 1040, 1), frontier_stable=frontier_stable)
    done()
    assert len(looks) == 4
    assert done.journal[-1] == ("flushed", 1040)


def test_under_load_a_commit_tells_that_the_one_before_is_visible(monkeypatch):
    monkeypatch.setattr(stream_module, "_GROUP_RECORDS", 1)
    looks: list[int] = []

    def frontier_stable():
        looks.append(done.producer.frontier_lsn())
        return 1 << 60

    done = Run(
        transaction(1000, 1040, 1) + transaction(1040, 1100, 2),
        transaction(1100, 1200, 3),
        frontier_stable=frontier_stable,
    )
    done()
    assert looks == [1200]
    committed = [kind for kind, _ in done.journal if kind == "commit"]
    assert len(committed) >= 3
    # After the first batch only the first of its two groups was known to be visible.
    assert [lsn for kind, lsn in done.journal if kind == "flushed"][:2] == [1040, 1100]
    assert done.journal[-1] == ("flushed", 1200)


def test_what_the_log_holds_beyond_the_slot_is_confirmed_once_it_has_passed(monkeypatch):
    monkeypatch.setattr(stream_module, "_STOP_WITHIN_S", -1.0)
    again = transaction(900, 1000, 1)
    unfinished = run(again[:2], start=900)
    assert unfinished.journal[-1] == ("flushed", 900)
    assert run(again + wire(keepalive(1000)), start=900).journal[-1] == ("flushed", 1000)


def test_whole_transactions_are_grouped_and_share_a_frontier():
    done = run(transaction(1000, 1040, 1, 2) + transaction(1040, 1100, 3))
    assert len(done.producer.frontiers()) == 1
    (record,) = done.producer.frontiers()
    assert record.end_lsn == 1100
    assert record.last == LastTransaction(1040, 7, 1_700_000_000_000_000)
    assert record.max_commit_us == 1_700_000_000_000_000


def test_a_transaction_without_rows_of_ours_moves_the_frontier():
    assert run(wire(Begin(1000, 1, 7), Commit(1000, 1040, 1))).producer.frontier_lsn() == 1040


# --- frontier records ---


def test_the_first_frontier_of_a_run_is_full_and_later_ones_are_not():
    done = run(transaction(1000, 1040, 1), [], transaction(1040, 1100, 2), [])
    first, second = done.producer.frontiers()
    assert first.full and first.full_at is None
    assert first.ends == {"t": {0: 1}, "u": {0: 3}}
    assert not second.full and second.full_at == 0
    assert second.ends == {"t": {0: 2}}


def test_a_full_record_comes_after_so_many_others(monkeypatch):
    monkeypatch.setattr("connectors.postgres.log_writer.FULL_EVERY_RECORDS", 2)
    batches = []
    for i in range(4):
        batches += [transaction(1000 + 40 * i, 1040 + 40 * i, i), []]
    done = run(*batches)
    assert [record.full for record in done.producer.frontiers()] == [True, False, False, True]


def test_a_stop_writes_the_offset_of_the_newest_frontier():
    done = run(transaction(1000, 1040, 1), [], transaction(1040, 1100, 2))
    topic, key, value = done.producer.committed[-1][-1]
    assert (topic, json.loads(key)) == (CONTROL, ["offset"])
    assert json.loads(value)["end_lsn"] == "0/44C"
    assert json.loads(value)["full_at"] == 0


def test_control_records_come_before_the_frontier_and_are_covered_by_it():
    emptied = wire(Begin(1000, 1, 7), RELATION, Truncate((RELID,), False, False))
    done = run(emptied + wire(Insert(RELID, (b"1", b"x")), Commit(1000, 1040, 1)))
    topics = [topic for topic, *_ in done.producer.committed[0]]
    assert topics == ["t", CONTROL, FRONTIER, CONTROL]
    assert done.producer.frontiers()[0].control_end == 1


def test_a_run_without_anything_new_writes_nothing():
    assert run().producer.committed == []


# --- a quiet source ---


def test_a_keepalive_moves_the_frontier_of_a_quiet_source():
    done = run(wire(keepalive(1500)))
    (record,) = done.producer.frontiers()
    assert (record.end_lsn, record.last) == (1500, None)
    assert done.journal[-1] == ("flushed", 1500)


def test_keepalives_move_it_at_most_once_a_second_unless_an_answer_is_wanted():
    done = run(*(wire(keepalive(1500 + i)) for i in range(5)))
    assert done.producer.frontier_lsn() == 1500
    done = run(*(wire(keepalive(1500 + i, reply=i == 4)) for i in range(5)))
    assert [record.end_lsn for record in done.producer.frontiers()] == [1500, 1504]


def test_a_keepalive_below_the_frontier_changes_nothing():
    assert run(wire(keepalive(500))).producer.committed == []


def test_a_keepalive_inside_a_transaction_moves_nothing(monkeypatch):
    monkeypatch.setattr(stream_module, "_STOP_WITHIN_S", -1.0)
    done = run(transaction(1000, 1040, 1)[:-1] + wire(keepalive(5000)))
    assert done.producer.frontiers() == []


# --- large transactions ---


def test_a_large_transaction_is_committed_in_parts_with_one_frontier_at_its_end(monkeypatch):
    monkeypatch.setattr(inserts, "LONGEST", 20)
    monkeypatch.setattr(stream_module, "_PART_RECORDS", 10)
    monkeypatch.setattr(stream_module, "_CHECK_EVERY_RECORDS", 5)
    done = run(transaction(1000, 9000, *range(100)))
    assert len(done.producer.committed) > 4
    assert done.producer.rows() == list(range(100))
    (record,) = done.producer.frontiers()
    assert record.end_lsn == 9000
    assert record.ends["t"] == {0: 100}
    assert FRONTIER in [topic for topic, *_ in done.producer.committed[-1]]


def test_a_stop_inside_a_transaction_leaves_nothing_of_it_below_a_frontier(monkeypatch):
    monkeypatch.setattr(stream_module, "_STOP_WITHIN_S", -1.0)
    monkeypatch.setattr(stream_module, "_PART_RECORDS", 10)
    monkeypatch.setattr(stream_module, "_CHECK_EVERY_RECORDS", 5)
    done = run(transaction(1000, 1040, 500), [], transaction(1040, 9000, *range(100))[:60])
    assert done.producer.aborts == 1
    assert done.producer.frontier_lsn() == 1040
    assert done.journal[-1] == ("flushed", 1040)


# --- runs of inserts ---


def test_inserts_that_follow_one_another_are_taken_at_once():
    done = run(transaction(1000, 1040, *range(40)) + transaction(1040, 1080, *range(40, 45)))
    assert done.producer.runs == [39]
    assert done.producer.rows() == list(range(45))


def test_a_run_that_ends_with_the_batch_goes_on_in_the_next():
    messages = transaction(1000, 1040, *range(100))
    done = run(messages[:32], messages[32:])
    assert done.producer.runs == [29, 69]
    assert done.producer.rows() == list(range(100))


def test_what_a_run_reports_is_received():
    this = Run(transaction(1000, 1040, *range(40)))
    this()
    assert this.journal[-1] == ("flushed", 1040)


# --- a change that cannot be captured ---


def test_a_change_that_cannot_be_captured_names_its_transaction():
    bad = wire(Begin(1040, 1, 8), RELATION, Insert(RELID, (b"2", b"\xff")), Commit(1040, 1100, 1))
    this = Run(transaction(1000, 1040, 1) + bad)
    with pytest.raises(StoppedAt) as caught:
        this()
    assert caught.value.lsn == 1040
    assert isinstance(caught.value.stopped, SourceStopped)
    assert this.producer.frontier_lsn() is None


def test_stopping_before_a_transaction_commits_everything_before_it():
    done = run(
        transaction(1000, 1040, 1) + transaction(1040, 1100, 2) + transaction(1100, 1200, 3),
        stop_before=1100,
    )
    assert done.stream.reached
    assert done.producer.rows() == [1, 2]
    assert done.producer.frontier_lsn() == 1100
    assert done.journal[-1] == ("flushed", 1100)


# --- a silent Kafka ---


def test_while_kafka_is_silent_postgres_is_answered_but_not_for_ever(monkeypatch):
    this = Run(wire(keepalive(1000, reply=True)))
    this()
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    for clock[0] in (1e6, 1e6 + 12, 1e6 + 24):
        before = len(this.journal)
        this.stream.kafka_waits()
        assert len(this.journal) == before + 1
    clock[0] = 1e6 + 31
    with pytest.raises(LogError) as caught:
        this.stream.kafka_waits()
    assert caught.value.code == "kafka_timeout"
