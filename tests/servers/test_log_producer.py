"""What the producer promises, on a real broker, read by a consumer that is not ours."""

import os
import time
import zlib
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from cdc.errors import LogError
from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.producer_client import boot_time
from cdc.log.topics import table_topic


@pytest.fixture
def admin(stack):
    return LogAdmin(stack.bootstrap)


@pytest.fixture
def topic(admin, topic_prefix):
    return make_topic(admin, f"{topic_prefix}a")


@pytest.fixture
def producer(stack, topic_prefix):
    with TransactionalProducer(stack.bootstrap, f"{topic_prefix}capture") as made:
        made.init()
        yield made


def make_topic(admin, name, partitions=2, **more):
    spec = table_topic(
        name, partitions=partitions, replication_factor=1, history_ms=3_600_000, **more
    )
    admin.create_topics([spec])
    return name


def committed(stack, topic, partition, isolation="read_committed"):
    """(offset, key, value, headers) of all records, by a plain consumer."""
    # A commit is marked in the partitions after it was answered.
    admin = LogAdmin(stack.bootstrap)
    deadline = time.monotonic() + 20
    while (at := admin.offsets(topic)[partition]).last_stable < at.end:
        assert time.monotonic() < deadline, at
        time.sleep(0.02)
    consumer = Consumer(
        {
            "bootstrap.servers": stack.bootstrap,
            "group.id": "check",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Any] = []
    while True:
        message = consumer.poll(20)
        assert message is not None
        if message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.key(), message.value(), message.headers()))


def test_ends_are_the_offsets_after_the_last_message_of_each_partition(stack, topic, producer):
    ends_seen = []
    for round_number in range(3):
        producer.begin()
        for i in range(3001):
            key = b"%d" % i
            headers = [("cdc.position", b"%d" % i)]
            producer.send(topic, zlib.crc32(key) % 2, key, b"%d" % round_number, headers)
        ends = producer.ends()
        producer.commit()
        ends_seen.append(ends[topic])
    for partition in (0, 1):
        records = committed(stack, topic, partition)
        for round_number, ends in enumerate(ends_seen):
            written = [r for r in records if r[2] == b"%d" % round_number]
            assert written[-1][0] + 1 == ends[partition]
            keys = [b"%d" % i for i in range(3001) if zlib.crc32(b"%d" % i) % 2 == partition]
            assert [r[1] for r in written] == keys
            assert all(r[3] == [("cdc.position", r[1])] for r in written)


def test_only_touched_partitions_have_ends(topic, producer):
    producer.begin()
    producer.send(topic, 1, b"k", None, [("h", b"x")])
    assert producer.ends() == {topic: {1: 1}}
    # More of the same transaction, after its ends were asked for.
    producer.send(topic, 1, b"k", b"v", None)
    producer.send(topic, 0, b"k", b"v", None)
    assert producer.ends() == {topic: {0: 1, 1: 2}}
    assert producer.send_reported(topic, 0, b"k", b"v") == 2
    producer.commit()
    producer.begin()
    assert producer.ends() == {}
    # After two records and a marker in partition 0.
    assert producer.send_reported(topic, 0, b"k", b"v") == 4
    producer.commit()


def test_a_transaction_that_is_aborted_while_the_one_before_is_completed(stack, topic, producer):
    # The broker refuses to end what it has not begun yet; how far it is differs from time to time.
    for n in range(60):
        producer.begin()
        producer.send(topic, 0, b"kept", b"%d" % n, None)
        producer.ends()
        producer.commit()
        producer.begin()
        for i in range(n):
            producer.send(topic, 0, b"aborted", b"%d" % i, None)
        # What the client has sent by now is for its own thread to say.
        time.sleep(0.001 * (n % 7))
        producer.abort()
    assert [record[2] for record in committed(stack, topic, 0)] == [b"%d" % n for n in range(60)]


def test_an_aborted_transaction_is_never_seen(stack, topic, producer):
    producer.begin()
    producer.send_reported(topic, 0, b"k", b"gone")
    producer.send(topic, 0, b"k", b"gone, and held back", None)
    producer.abort()
    producer.begin()
    producer.send(topic, 0, b"k", b"there", None)
    ends = producer.ends()
    producer.commit()
    assert [r[2] for r in committed(stack, topic, 0)] == [b"there"]
    assert ends == {topic: {0: committed(stack, topic, 0)[-1][0] + 1}}
    assert b"gone" in [r[2] for r in committed(stack, topic, 0, "read_uncommitted")]


def test_a_zombie_is_fenced_and_what_it_left_open_is_never_seen(stack, topic, producer):
    producer.begin()
    producer.send_reported(topic, 0, b"k", b"zombie, before")
    with TransactionalProducer(stack.bootstrap, producer.transactional_id) as newer:
        newer.init()
        newer.begin()
        newer.send(topic, 0, b"k", b"newer", None)
        newer.ends()
        newer.commit()
        producer.send(topic, 0, b"k", b"zombie, after", None)
        with pytest.raises(LogError) as caught:
            producer.ends()
        assert caught.value.code == "producer_fenced"
        assert producer.spent
        with pytest.raises(RuntimeError):
            producer.begin()
        newer.begin()
        newer.send(topic, 0, b"k", b"newer still", None)
        newer.ends()
        newer.commit()
    assert [r[2] for r in committed(stack, topic, 0)] == [b"newer", b"newer still"]


def test_a_zombie_with_nothing_left_to_write_cannot_commit(stack, topic, producer):
    producer.begin()
    producer.send_reported(topic, 0, b"k", b"zombie")
    with TransactionalProducer(stack.bootstrap, producer.transactional_id) as newer:
        newer.init()
        with pytest.raises(LogError) as caught:
            producer.commit()
    assert caught.value.code == "producer_fenced"
    assert committed(stack, topic, 0) == []


def test_a_transaction_that_the_broker_timed_out_is_told_from_a_takeover(
    stack, topic, producer, monkeypatch
):
    producer.begin()
    producer.send_reported(topic, 0, b"k", b"v")
    begun = boot_time()
    monkeypatch.setattr("cdc.log.producer.boot_time", lambda: begun + 61)
    with TransactionalProducer(stack.bootstrap, producer.transactional_id) as newer:
        newer.init()
        with pytest.raises(LogError) as caught:
            producer.commit()
    assert caught.value.code == "transaction_expired"
    assert producer.spent


def test_a_message_without_callback_that_fails_keeps_the_transaction_from_committing(
    stack, topic, admin, topic_prefix
):
    """The producer believes in a larger limit than the broker has."""
    small = make_topic(admin, f"{topic_prefix}small", max_message_bytes=2000)
    with TransactionalProducer(
        stack.bootstrap, f"{topic_prefix}x", max_message_bytes=1_000_000
    ) as producer:
        producer.init()
        producer.begin()
        producer.send(small, 0, b"k", os.urandom(5000), None)
        producer.send(topic, 0, b"k", b"good", None)
        with pytest.raises(LogError) as caught:
            # The held message is a good one: only librdkafka knows of the bad one.
            producer.send(small, 0, b"k", b"last", None)
            producer.ends()
            producer.commit()
        assert caught.value.code in ("record_too_large", "transaction_aborted")
        # Aborted, and of use again.
        producer.begin()
        producer.send(topic, 0, b"k", b"next", None)
        producer.ends()
        producer.commit()
    assert [r[2] for r in committed(stack, topic, 0)] == [b"next"]
    assert committed(stack, small, 0) == []


def test_librdkafka_itself_refuses_the_commit(stack, topic, admin, topic_prefix):
    """What the producer's comment claims, without our code: no callback, error at commit."""
    from confluent_kafka import KafkaException, Producer

    small = make_topic(admin, f"{topic_prefix}small", max_message_bytes=2000)
    for bad_topic, partition, value in (
        (small, 0, os.urandom(5000)),
        (topic, 7, b"no such partition"),
    ):
        # A new one for each: a client that knows the topic's partitions refuses 7 at once.
        plain = Producer(
            {"bootstrap.servers": stack.bootstrap, "transactional.id": f"{topic_prefix}p"}
        )
        plain.init_transactions(30)
        plain.begin_transaction()
        plain.produce(bad_topic, value, b"k", partition)
        plain.produce(topic, b"good", b"k", 0)
        assert plain.flush(20) == 0
        with pytest.raises(KafkaException) as caught:
            plain.commit_transaction(20)
        assert caught.value.args[0].txn_requires_abort()
        plain.abort_transaction(20)
    assert committed(stack, topic, 0) == []


def test_a_record_over_the_limit_is_refused_before_it_is_sent(stack, topic, producer):
    limit = producer.max_message_bytes
    assert not producer.too_large(b"k", b"x" * (limit - 300), [("h", b"y")])
    assert producer.too_large(b"k", b"x" * limit, None)
    producer.begin()
    producer.send(topic, 0, b"k", b"x", None)
    with pytest.raises(LogError) as caught:
        producer.send(topic, 0, b"k", b"secret" * limit, None)
    assert caught.value.code == "record_too_large"
    assert topic in caught.value.message
    assert "secret" not in str(caught.value)
    producer.begin()
    largest = os.urandom(limit - 200)
    producer.send(topic, 0, b"k", largest, None)
    producer.ends()
    producer.commit()
    assert [r[2] for r in committed(stack, topic, 0)] == [largest]


def test_many_messages_near_a_small_limit_are_batched_below_it(stack, admin, topic_prefix):
    small = make_topic(admin, f"{topic_prefix}small", partitions=1, max_message_bytes=4000)
    values = [os.urandom(1500 + 71 * (i % 30)) for i in range(300)]
    with TransactionalProducer(
        stack.bootstrap, f"{topic_prefix}x", max_message_bytes=4000
    ) as producer:
        producer.init()
        producer.begin()
        for value in values:
            producer.send(small, 0, b"k", value, None)
        producer.ends()
        producer.commit()
    assert [r[2] for r in committed(stack, small, 0)] == values


def test_more_than_the_queue_holds_passes_and_the_caller_is_not_forgotten(
    stack, topic, topic_prefix
):
    with TransactionalProducer(
        stack.bootstrap, f"{topic_prefix}x", queue_bytes=2_200_000
    ) as producer:
        producer.init()
        producer.begin()
        value = os.urandom(100_000)
        for i in range(200):
            producer.send(topic, 0, b"%d" % i, value, None)
        producer.ends()
        producer.commit()
    assert [r[1] for r in committed(stack, topic, 0)] == [b"%d" % i for i in range(200)]


def test_a_topic_made_again_under_the_producer_is_noticed(admin, topic, producer):
    producer.begin()
    for _ in range(10):
        producer.send(topic, 0, b"k", b"v", None)
    producer.ends()
    producer.commit()
    admin.delete_topics([topic])
    make_topic(admin, topic)
    producer.begin()
    producer.send(topic, 0, b"k", b"v", None)
    with pytest.raises(LogError) as caught:
        producer.ends()
    assert caught.value.code == "truncated_topic"
    assert topic in caught.value.message


def test_calls_out_of_order_are_mistakes_of_ours(topic, producer):
    with pytest.raises(RuntimeError):
        producer.send(topic, 0, b"k", b"v", None)
    producer.abort()
    producer.begin()
    with pytest.raises(RuntimeError):
        producer.begin()
    producer.send(topic, 0, b"k", b"v", None)
    with pytest.raises(RuntimeError, match="held back"):
        producer.commit()
    producer.ends()
    producer.commit()
    with pytest.raises(RuntimeError):
        producer.commit()
