import threading
import time

import orjson
import pytest

from cdc.control import SourceRecord, control_key
from cdc.errors import EnvironmentProblem, LogError
from cdc.frontier import FrontierRecord
from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.ranges import Range
from cdc.log.reader import LogReader
from cdc.log.topics import TopicSpec, control_topic, frontier_topic, table_topic
from cdc.names import TableId
from cdc.position import Position
from deploy.local.ports import choose_port

HOUR_MS = 3_600_000
SOURCE = SourceRecord("7000000000000000001", 1, "slot", "publication", 1, 150000, "shop")


@pytest.fixture
def admin(stack):
    return LogAdmin(stack.bootstrap)


@pytest.fixture
def producer(stack, topic_prefix):
    with TransactionalProducer(stack.bootstrap, f"{topic_prefix}capture") as made:
        made.init()
        yield made


@pytest.fixture
def reader(stack, topic_prefix):
    with LogReader(stack.bootstrap, topic_prefix=topic_prefix) as made:
        yield made


@pytest.fixture
def topic(admin, topic_prefix):
    name = f"{topic_prefix}shop.public.a"
    admin.create_topics([table_topic(name, partitions=2, replication_factor=1, history_ms=HOUR_MS)])
    return name


@pytest.fixture
def source_topics(admin, topic_prefix):
    control, frontier = f"{topic_prefix}shop.__cdc", f"{topic_prefix}shop.__frontier"
    admin.create_topics(
        [
            control_topic(control, replication_factor=1),
            frontier_topic(frontier, replication_factor=1, history_ms=HOUR_MS),
        ]
    )
    return control, frontier


def commit(producer, reader, topic, end, partition=0):
    """Commit, and wait for the mark, which is written after the commit was answered."""
    producer.commit()
    deadline = time.monotonic() + 20
    while reader.bounds(topic, partition).last_stable < end:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write(producer, topic, partition, keys, value=b"v"):
    """One committed transaction; the end of the partition."""
    producer.begin()
    for key in keys:
        producer.send(topic, partition, b"%d" % key, value, [("cdc.schema", b"1")])
    end = producer.ends()[topic][partition]
    producer.commit()
    return end


def offsets(reader, topic, partition, start, end):
    return [r[0] for batch in reader.raw_records(topic, partition, start, end) for r in batch]


def keys(reader, topic, partition, start, end):
    return [int(r[1]) for batch in reader.raw_records(topic, partition, start, end) for r in batch]


def frontier_record(lsn, *, full, full_at=None, ends=None, control_end=0):
    return FrontierRecord(
        position=Position(1, lsn, 0),
        end_lsn=lsn,
        sysid=SOURCE.sysid,
        timeline=1,
        slot="slot",
        last=None,
        max_commit_us=lsn,
        control_end=control_end,
        full=full,
        full_at=full_at,
        ends=ends or {},
    )


def write_frontier(producer, reader, topic, record):
    """One transaction with this record, seen by readers; its offset."""
    producer.begin()
    end = producer.send_reported(topic, 0, None, record.to_value())
    commit(producer, reader, topic, end)
    return end - 1


# --- ranges ---


def test_every_range_gives_exactly_its_records(reader, producer, topic):
    # Offsets: 0 1 2 | marker 3 | 4 5 aborted | marker 6 | 7 8 | marker 9
    assert write(producer, topic, 0, [0, 1, 2]) == 3
    producer.begin()
    producer.send(topic, 0, b"4", b"aborted", None)
    producer.send_reported(topic, 0, b"5", b"aborted")
    producer.abort()
    assert write(producer, topic, 0, [7, 8]) == 9
    there = [0, 1, 2, 7, 8]
    for start in range(10):
        for end in range(start, 11):
            expected = [o for o in there if start <= o < end]
            assert offsets(reader, topic, 0, start, end) == expected, (start, end)
    records = next(reader.raw_records(topic, 0, 1, 2))
    assert records == [(1, b"1", b"v", [("cdc.schema", b"1")])]


def test_partitions_are_read_together_and_each_in_order(reader, producer, topic):
    producer.begin()
    for i in range(20_000):
        producer.send(topic, i % 2, b"%d" % i, b"v", None)
    ends = producer.ends()[topic]
    producer.commit()
    found: dict[int, list[int]] = {0: [], 1: []}
    for name, partition, batch in reader.ranges(
        [Range(topic, 0, 0, ends[0]), Range(topic, 1, 500, ends[1])]
    ):
        assert name == topic
        found[partition] += [int(key) for _, key, _, _ in batch]
    assert found == {0: list(range(0, 20_000, 2)), 1: list(range(1001, 20_000, 2))}
    assert list(reader.ranges([Range(topic, 0, 5, 5)])) == []


def test_records_are_parsed_and_a_foreign_one_is_an_error_with_its_place(reader, producer, topic):
    position = Position(1, 99, 1)
    value = orjson.dumps(
        {"before": None, "after": {"id": 5}, "source": {"unchanged": ["big"]}, "op": "u"}
    )
    headers = [("cdc.position", str(position).encode()), ("cdc.schema", b"3")]
    producer.begin()
    producer.send(topic, 0, b'{"id":5}', value, headers)
    producer.send(topic, 0, b'{"id":5}', None, headers)
    producer.send(topic, 0, b'{"id":6}', b"{}", None)
    producer.ends()
    producer.commit()
    update, tombstone = reader.records(topic, 0, 0, 2)
    assert (update.offset, update.op, update.key) == (0, "u", b'{"id":5}')
    assert (update.position, update.schema_version) == (position, 3)
    assert (update.after, update.unchanged) == ({"id": 5}, ("big",))
    assert (tombstone.op, tombstone.position) == ("tombstone", position)
    with pytest.raises(LogError) as caught:
        list(reader.records(topic, 0, 0, 3))
    assert caught.value.code == "bad_record"
    assert f"{topic}[0]@2" in caught.value.message


def test_compaction_leaves_gaps_anywhere_also_at_the_end(reader, producer, admin, topic_prefix):
    name = f"{topic_prefix}compacted"
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "0",
    }
    admin.create_topics([TopicSpec(name, 1, 1, settings)])
    for round_number in range(4):
        write(producer, name, 0, range(round_number, 10), b"%d" % round_number)
        time.sleep(0.15)
    # Tombstones, so that the last offsets of the range vanish, too.
    producer.begin()
    for key in range(5, 10):
        producer.send(name, 0, b"%d" % key, None, None)
    end = producer.ends()[name][0]
    producer.commit()
    deadline = time.monotonic() + 60
    # Tombstones go with the second cleaning.
    while len(offsets(reader, name, 0, 0, end)) > 5:
        assert time.monotonic() < deadline, "the broker does not compact"
        # A segment is only rolled, and so cleaned, when something is written.
        write(producer, name, 0, [99])
        time.sleep(0.3)
    assert keys(reader, name, 0, 0, end) == [0, 1, 2, 3, 4]
    there = offsets(reader, name, 0, 0, end)
    assert there == [0, 11, 21, 30, 31]
    for start in range(0, end + 1, 3):
        for stop in range(start, end + 1):
            expected = [o for o in there if start <= o < stop]
            assert offsets(reader, name, 0, start, stop) == expected, (start, stop)


def test_an_open_transaction_is_waited_for(reader, producer, topic):
    write(producer, topic, 0, [0])
    producer.begin()
    producer.send(topic, 0, b"2", b"v", None)
    end = producer.ends()[topic][0]
    timer = threading.Timer(0.7, producer.commit)
    timer.start()
    began = time.monotonic()
    assert offsets(reader, topic, 0, 0, end) == [0, 2]
    assert time.monotonic() - began >= 0.5
    timer.join()


def test_an_open_transaction_that_is_aborted_is_waited_for_too(reader, producer, topic):
    producer.begin()
    producer.send(topic, 0, b"0", b"v", None)
    end = producer.ends()[topic][0]
    timer = threading.Timer(0.7, producer.abort)
    timer.start()
    assert offsets(reader, topic, 0, 0, end) == []
    timer.join()


def test_a_transaction_that_stays_open_is_named(stack, producer, topic):
    write(producer, topic, 0, [0])
    producer.begin()
    producer.send(topic, 0, b"2", b"v", None)
    end = producer.ends()[topic][0]
    with (
        LogReader(stack.bootstrap, timeout=2) as reader,
        pytest.raises(LogError) as caught,
    ):
        list(reader.raw_records(topic, 0, 0, end))
    assert caught.value.code == "open_transaction"
    assert topic in caught.value.message


def test_a_log_that_is_too_short_is_truncated(reader, producer, topic):
    write(producer, topic, 0, [0, 1])
    for start, end in ((0, 4), (3, 10), (7, 10)):
        with pytest.raises(LogError) as caught:
            list(reader.raw_records(topic, 0, start, end))
        assert caught.value.code == "truncated_topic"
        assert topic in caught.value.message


def test_a_log_whose_start_has_moved_is_named(reader, producer, admin, stack, topic_prefix):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    name = f"{topic_prefix}expiring"
    admin.create_topics([frontier_topic(name, replication_factor=1, history_ms=HOUR_MS)])
    end = write(producer, name, 0, range(20))
    plain = AdminClient({"bootstrap.servers": stack.bootstrap})
    for future in plain.delete_records([TopicPartition(name, 0, 10)]).values():
        future.result(20)
    with pytest.raises(LogError) as caught:
        list(reader.raw_records(name, 0, 5, end))
    assert caught.value.code == "log_start_moved"
    assert name in caught.value.message
    assert offsets(reader, name, 0, 10, end) == list(range(10, 20))


def test_what_is_not_there_is_named(reader, admin, topic, topic_prefix):
    for call in (
        lambda: reader.bounds(f"{topic_prefix}never"),
        lambda: list(reader.raw_records(f"{topic_prefix}never", 0, 0, 1)),
        lambda: reader.control_state("never"),
        lambda: reader.frontier("never"),
    ):
        with pytest.raises(LogError) as caught:
            call()
        assert caught.value.code == "topic_missing"
        assert "never" in caught.value.message
    assert not admin.exists(f"{topic_prefix}never")


def test_no_broker_is_an_environment_problem():
    with (
        LogReader(f"127.0.0.1:{choose_port()}", timeout=1) as reader,
        pytest.raises(EnvironmentProblem) as caught,
    ):
        reader.bounds("a")
    assert caught.value.code == "kafka_unreachable"


def test_one_read_at_a_time(reader, producer, topic):
    end = write(producer, topic, 0, range(5000))
    first = reader.raw_records(topic, 0, 0, end)
    next(first)
    assert len(offsets(reader, topic, 0, 0, end)) == 5000
    with pytest.raises(RuntimeError, match="one read at a time"):
        for _ in first:
            pass
    # A read that was left halfway disturbs nothing.
    for _ in range(20):
        half = reader.raw_records(topic, 0, 0, end)
        next(half)
        half.close()
        assert len(offsets(reader, topic, 0, 10, end)) == 4990


# --- control and frontier ---


def test_control_state_up_to_an_offset(reader, producer, source_topics):
    control, _ = source_topics
    producer.begin()
    producer.send(control, 0, *SOURCE.to_key_value(), None)
    position = Position(1, 50, 1)
    key = control_key("truncate", "public", "a", 1, str(position))
    producer.send(control, 0, key, b'{"v":1,"cascade":false,"restart_identity":false}', None)
    end = producer.ends()[control][0]
    producer.commit()
    producer.begin()
    producer.send(control, 0, key, None, None)
    producer.send_reported(control, 0, control_key("source"), b"aborted")
    producer.abort()
    producer.begin()
    commit(producer, reader, control, producer.send_reported(control, 0, key, None))
    state = reader.control_state("shop", end)
    assert state.source == SOURCE
    assert state.truncates == {(TableId("public", "a"), 1): [position]}
    assert state.end == end
    newest = reader.control_state("shop")
    assert newest.source == SOURCE
    assert newest.truncates == {(TableId("public", "a"), 1): []}
    assert newest.end == reader.bounds(control).last_stable


def test_no_frontier_before_the_first_record(reader, producer, source_topics):
    assert reader.frontier("shop") is None
    producer.begin()
    producer.send_reported(source_topics[1], 0, None, b"aborted")
    producer.abort()
    assert reader.frontier("shop") is None
    assert reader.ends_at("shop", Position(1, 5, 0)) is None
    assert list(reader.frontier_history("shop")) == []


def test_frontier_merges_ends_from_the_full_record_on(reader, producer, source_topics):
    _, topic = source_topics
    ends = {"t.a": {0: 10, 1: 20}, "t.b": {0: 5}}
    write_frontier(producer, reader, topic, frontier_record(1, full=True, ends={"t.a": {0: 1}}))
    full_at = write_frontier(producer, reader, topic, frontier_record(2, full=True, ends=ends))
    for i in range(3, 60):
        record = frontier_record(i, full=False, full_at=full_at, ends={"t.a": {1: 20 + i}})
        offset = write_frontier(producer, reader, topic, record)
    # Aborted transactions above it, more of them than one look from the end takes in.
    for _ in range(30):
        producer.begin()
        producer.send_reported(topic, 0, None, frontier_record(99, full=True).to_value())
        producer.abort()
    view = reader.frontier("shop")
    assert view is not None
    assert view.position == Position(1, 59, 0)
    assert (view.full_at, view.offset) == (full_at, offset)
    assert view.ends == {"t.a": {0: 10, 1: 79}, "t.b": {0: 5}}
    # An open transaction's record is not there either.
    producer.begin()
    end = producer.send_reported(topic, 0, None, frontier_record(100, full=True).to_value())
    view = reader.frontier("shop")
    assert view is not None and view.position == Position(1, 59, 0)
    commit(producer, reader, topic, end)
    view = reader.frontier("shop")
    assert view is not None and view.position == Position(1, 100, 0)


def test_ends_of_any_position_that_is_kept(reader, producer, source_topics, stack):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    _, topic = source_topics
    at = {}
    full_at = None
    for i in range(10, 1000, 10):
        full = i % 100 == 10
        if full:
            full_at = write_frontier(
                producer, reader, topic, frontier_record(i, full=True, ends={"t": {0: i, 1: i}})
            )
        else:
            record = frontier_record(i, full=False, full_at=full_at, ends={"t": {0: i}})
            write_frontier(producer, reader, topic, record)
        at[i] = {"t": {0: i, 1: i - (i - 10) % 100}}
        # Aborted transactions among them.
        producer.begin()
        producer.send_reported(topic, 0, None, frontier_record(5000, full=True).to_value())
        producer.abort()
    for lsn in (10, 11, 19, 20, 115, 505, 990, 10**6):
        expected = at[min(990, lsn // 10 * 10)]
        assert reader.ends_at("shop", Position(1, lsn, 0)) == expected, lsn
    # A position inside of the transaction that a frontier's LSN begins.
    assert reader.ends_at("shop", Position(1, 50, 3)) == at[50]
    assert reader.ends_at("shop", Position(1, 9, 0)) is None
    assert reader.ends_at("shop", Position(0, 10**6, 0)) is None
    history = [r.end_lsn for _, r in reader.frontier_history("shop", Position(1, 955, 0))]
    assert history == [960, 970, 980, 990]
    assert len(list(reader.frontier_history("shop"))) == len(at)
    # Retention takes the beginning: a frontier without its full record is of no use.
    plain = AdminClient({"bootstrap.servers": stack.bootstrap})
    for future in plain.delete_records([TopicPartition(topic, 0, 2)]).values():
        future.result(20)
    assert reader.ends_at("shop", Position(1, 50, 0)) is None
    assert reader.ends_at("shop", Position(1, 150, 0)) == at[150]


def test_a_frontier_that_lost_its_full_record_is_an_error(reader, producer, source_topics, stack):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    _, topic = source_topics
    full_at = write_frontier(producer, reader, topic, frontier_record(1, full=True))
    write_frontier(producer, reader, topic, frontier_record(2, full=False, full_at=full_at))
    plain = AdminClient({"bootstrap.servers": stack.bootstrap})
    for future in plain.delete_records([TopicPartition(topic, 0, 1)]).values():
        future.result(20)
    with pytest.raises(LogError) as caught:
        reader.frontier("shop")
    assert caught.value.code == "frontier_incomplete"
