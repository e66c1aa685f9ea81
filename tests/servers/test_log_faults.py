"""The broker dies or falls silent in the middle of transactions and reads."""

import os
import random
import threading
import time

import pytest

from cdc.errors import CdcError, LogError
from cdc.log.admin import LogAdmin
from cdc.log.kafka_errors import is_retryable
from cdc.log.producer import TransactionalProducer
from cdc.log.reader import LogReader
from cdc.log.topics import table_topic
from deploy.local.settings import KAFKA


@pytest.fixture
def kafka(spare_stack):
    return spare_stack.kafka


@pytest.fixture
def topic(kafka, topic_prefix):
    name = f"{topic_prefix}a"
    spec = table_topic(name, partitions=2, replication_factor=1, history_ms=3_600_000)
    LogAdmin(kafka.bootstrap).create_topics([spec])
    return name


def new_producer(kafka, topic, **more):
    producer = TransactionalProducer(kafka.bootstrap, f"{topic}.capture", **more)
    producer.init(60)
    return producer


def values(kafka, topic, partition):
    """Offset → value of what is committed."""
    # A commit is marked in the partitions after it was answered; this waits for all marks.
    new_producer(kafka, topic).close()
    with LogReader(kafka.bootstrap, timeout=90) as reader:
        end = reader.bounds(topic, partition).last_stable
        return {
            offset: value
            for batch in reader.raw_records(topic, partition, 0, end)
            for offset, _, value, _ in batch
        }


def test_a_transaction_outlives_the_broker_it_was_written_to(kafka, topic):
    calls = []
    producer = new_producer(kafka, topic, waiting=lambda: calls.append(time.monotonic()))
    producer.begin()
    for i in range(2000):
        producer.send(topic, i % 2, b"%d" % i, b"before", None)
    ends = producer.ends()
    kafka.kill9()
    restarted = threading.Timer(1.5, kafka.start)
    restarted.start()
    # Written while the broker is down, too.
    for i in range(2000):
        producer.send(topic, i % 2, b"%d" % i, b"after", None)
    later = producer.ends()
    producer.commit()
    restarted.join()
    assert len(calls) >= 2
    for partition in (0, 1):
        found = values(kafka, topic, partition)
        assert list(found.values()) == [b"before"] * 1000 + [b"after"] * 1000
        offsets = list(found)
        assert ends[topic][partition] == offsets[999] + 1
        assert later[topic][partition] == offsets[-1] + 1
    producer.close()


def test_what_a_dead_producer_left_open_is_gone_after_the_brokers_recovery(kafka, topic):
    dead = new_producer(kafka, topic)
    dead.begin()
    dead.send_reported(topic, 0, b"k", b"left open")
    kafka.kill9()
    kafka.start()
    producer = new_producer(kafka, topic)
    producer.begin()
    producer.send(topic, 0, b"k", b"new", None)
    ends = producer.ends()
    producer.commit()
    assert values(kafka, topic, 0) == {ends[topic][0] - 1: b"new"}
    with pytest.raises(LogError) as caught:
        dead.commit()
    assert caught.value.code == "producer_fenced"
    assert values(kafka, topic, 0) == {ends[topic][0] - 1: b"new"}
    producer.close()
    dead.close()


def test_transactions_are_whole_or_absent_whenever_the_broker_is_killed(kafka, topic, kill_rounds):
    """A committed transaction is there, a failed one is not, an unknown one is whole or absent."""
    chosen = random.Random(11)
    returned, unknown, number = [], [], 0
    producer = new_producer(kafka, topic)

    def crash(delay):
        time.sleep(delay)
        kafka.kill9()
        kafka.start()

    for _ in range(kill_rounds):
        crashing = threading.Thread(target=crash, args=[chosen.uniform(0.05, 0.6)])
        crashing.start()
        after = 0
        while after < 5:
            if not crashing.is_alive():
                after += 1
            number += 1
            value = b"%d" % number
            try:
                producer.begin()
                for i in range(200):
                    producer.send(topic, i % 2, b"%d" % i, value, None)
                ends = producer.ends()
                producer.commit()
                returned.append((value, ends[topic]))
            except CdcError as error:
                assert is_retryable(error), error
                if error.code == "commit_unknown":
                    unknown.append(value)
                if producer.spent:
                    producer.close()
                    producer = new_producer(kafka, topic)
        crashing.join()
    producer.close()
    assert len(returned) > 4 * kill_rounds
    found = [values(kafka, topic, partition) for partition in (0, 1)]
    allowed = {value for value, _ in returned} | set(unknown)
    for partition in (0, 1):
        counts: dict[bytes, int] = {}
        for value in found[partition].values():
            counts[value] = counts.get(value, 0) + 1
        assert counts.keys() <= allowed
        assert set(counts.values()) == {100}
        for value, ends in returned:
            assert counts[value] == 100
            last = max(o for o, v in found[partition].items() if v == value)
            assert ends[partition] == last + 1
    assert set(found[0].values()) == set(found[1].values())


def test_a_silent_broker_ends_in_a_named_error_and_nothing_of_it_is_seen(kafka, topic):
    calls = []
    producer = new_producer(
        kafka, topic, transaction_timeout=3, waiting=lambda: calls.append(time.monotonic())
    )
    producer.begin()
    producer.send_reported(topic, 0, b"k", b"lost")
    kafka.pause()
    try:
        producer.send(topic, 0, b"k", b"lost", None)
        with pytest.raises(CdcError) as caught:
            producer.ends()
            producer.commit()
    finally:
        kafka.resume()
    assert is_retryable(caught.value), caught.value
    assert len(calls) >= 3
    producer.close()
    producer = new_producer(kafka, topic)
    producer.begin()
    producer.send(topic, 0, b"k", b"kept", None)
    producer.ends()
    producer.commit()
    producer.close()
    assert list(values(kafka, topic, 0).values()) == [b"kept"]


def test_a_topic_that_is_gone_is_not_made_again_by_writing_to_it(kafka, topic, monkeypatch):
    # As brokers are by default.
    monkeypatch.setitem(KAFKA, "auto.create.topics.enable", "true")
    kafka.restart()
    admin = LogAdmin(kafka.bootstrap)
    producer = new_producer(kafka, topic, transaction_timeout=3)
    admin.delete_topics([topic])
    producer.begin()
    with pytest.raises(CdcError) as caught:
        producer.send(topic, 0, b"k", b"lost", None)
        producer.ends()
    assert is_retryable(caught.value), caught.value
    producer.close()
    assert not admin.topic_ids([topic])


def test_a_commit_that_is_not_answered_is_of_unknown_outcome(kafka, topic):
    producer = new_producer(kafka, topic, transaction_timeout=2)
    producer.begin()
    producer.send(topic, 0, b"k", b"perhaps", None)
    producer.ends()
    kafka.pause()
    try:
        with pytest.raises(LogError) as caught:
            producer.commit()
    finally:
        kafka.resume()
    assert caught.value.code == "commit_unknown"
    assert producer.spent
    producer.close()
    # A new producer settles it: afterwards it is there or not, and stays so.
    settled = values(kafka, topic, 0)
    time.sleep(1)
    assert values(kafka, topic, 0) == settled
    assert list(settled.values()) in ([], [b"perhaps"])


def test_a_read_goes_on_after_the_broker_was_killed(kafka, topic):
    producer = new_producer(kafka, topic)
    for part in range(10):
        producer.begin()
        for i in range(4000):
            producer.send(topic, 0, b"%d" % (part * 4000 + i), os.urandom(1000), None)
        end = producer.ends()[topic][0]
        producer.commit()
    producer.close()
    with LogReader(kafka.bootstrap, timeout=90) as reader:
        keys = []
        batches = reader.raw_records(topic, 0, 0, end)
        keys += [key for _, key, _, _ in next(batches)]
        kafka.kill9()
        kafka.start()
        for batch in batches:
            keys += [key for _, key, _, _ in batch]
    assert keys == [b"%d" % i for i in range(40_000)]
