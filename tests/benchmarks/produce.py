"""Our transactional producer against a plain confluent producer of the same messages.

The plain one is idempotent with acks=all and lz4, too, but knows no transactions and no end
offsets; a third contestant asks for a delivery report of every message, as the usual way to
learn end offsets.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.topics import frontier_topic, table_topic
from tests.support.stack import open_stack

ROUNDS = 5
PARTITIONS = 2
PLAIN = {"acks": "all", "enable.idempotence": True, "compression.type": "lz4", "linger.ms": 5}

Message = tuple[int, bytes, bytes, list[tuple[str, bytes]]]


def messages(rows: int) -> list[Message]:
    """Envelopes of about 450 bytes of a table of ten columns, made up."""
    made = []
    for i in range(rows):
        key = b'{"id":%d}' % i
        after = (
            b'{"id":%d,"customer":%d,"name":"customer %d","total":"%d.%02d","paid":%s,'
            b'"note":"%d","created":"2013-01-%02dT%02d:00:00.000000Z","score":%d.5,'
            b'"state":"open","count":%d}'
            % (i, i * 7 % 9973, i * 7 % 9973, i % 1000, i % 100, b"true" if i % 3 else b"false",
               i * 2654435761 % 2**32, i % 28 + 1, i % 24, i % 77, i % 13)
        )  # fmt: skip
        value = (
            b'{"before":null,"after":%b,"source":{"version":"0.1.0","connector":"postgresql",'
            b'"name":"shop","db":"shop","schema":"public","table":"orders","ts_ms":1357000000000,'
            b'"ts_us":1357000000000000,"snapshot":"false","txId":745,"lsn":23818048,'
            b'"position":"0001-00000000016B7000-%08X"},"op":"c","ts_ms":1357000000001}' % (after, i)
        )
        headers = [("cdc.position", b"0001-00000000016B7000-%08X" % i), ("cdc.schema", b"1")]
        made.append((zlib.crc32(key) % PARTITIONS, key, value, headers))
    return made


def plain(bootstrap: str, topic: str, batch: list[Message], *, callback: bool) -> float:
    """Seconds for all messages, delivered."""
    producer = Producer({"bootstrap.servers": bootstrap, **PLAIN})
    producer.list_topics(topic, timeout=20)
    ends = {}

    def delivered(error, message):
        ends[message.partition()] = message.offset()

    on_delivery = delivered if callback else None
    began = time.perf_counter()
    for n, (partition, key, value, headers) in enumerate(batch):
        while True:
            try:
                producer.produce(
                    topic, value, key, partition, headers=headers, on_delivery=on_delivery
                )
                break
            except BufferError:
                producer.poll(0.1)
        if n % 500 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    return time.perf_counter() - began


def ours(bootstrap: str, topic: str, frontier: str, batch: list[Message]) -> float:
    """Seconds for all messages in one transaction, committed, with ends and frontier."""
    with TransactionalProducer(bootstrap, "benchmark") as producer:
        producer.init()
        began = time.perf_counter()
        producer.begin()
        send = producer.send
        for partition, key, value, headers in batch:
            send(topic, partition, key, value, headers)
        producer.ends()
        producer.send_reported(frontier, 0, None, b"{}")
        producer.commit()
        return time.perf_counter() - began


def small_transactions(bootstrap: str, topic: str, frontier: str, batch: list[Message]) -> float:
    """Median seconds of a transaction of one message with ends and frontier."""
    with TransactionalProducer(bootstrap, "benchmark") as producer:
        producer.init()
        times = []
        for partition, key, value, headers in batch[:200]:
            began = time.perf_counter()
            producer.begin()
            producer.send(topic, partition, key, value, headers)
            producer.ends()
            producer.send_reported(frontier, 0, None, b"{}")
            producer.commit()
            times.append(time.perf_counter() - began)
        return statistics.median(times)


def run(rows: int = 200_000) -> dict[str, Any]:
    """Rates in messages per second, medians of rounds in which all take turns."""
    batch = messages(rows)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_stack(Path(folder)) as stack,
    ):
        topic, frontier = f"{uuid.uuid4().hex}.t", f"{uuid.uuid4().hex}.f"
        LogAdmin(stack.bootstrap).create_topics(
            [
                table_topic(topic, partitions=PARTITIONS, replication_factor=1, history_ms=10**9),
                frontier_topic(frontier, replication_factor=1, history_ms=10**9),
            ]
        )
        # The broker's code is compiled while it runs: one round does not count.
        plain(stack.bootstrap, topic, batch, callback=False)
        contestants = {
            "plain": lambda: plain(stack.bootstrap, topic, batch, callback=False),
            "ours": lambda: ours(stack.bootstrap, topic, frontier, batch),
            "callbacks": lambda: plain(stack.bootstrap, topic, batch, callback=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        cpu: dict[str, list[float]] = {name: [] for name in contestants}
        order = list(contestants)
        for _ in range(ROUNDS):
            for name in order:
                used = time.process_time()
                seconds[name].append(contestants[name]())
                cpu[name].append(time.process_time() - used)
            order = [*order[1:], order[0]]
        latency = small_transactions(stack.bootstrap, topic, frontier, batch)
    rates = {name: rows / statistics.median(times) for name, times in seconds.items()}
    # CPU of this process, the client's threads included: steadier than time on a busy machine.
    costs = {name: statistics.median(times) / rows * 1e6 for name, times in cpu.items()}
    return {
        "figures": {
            "plain, messages/s": round(rates["plain"]),
            "callback on every message, messages/s": round(rates["callbacks"]),
            "ours, messages/s": round(rates["ours"]),
            "plain, CPU µs per message": round(costs["plain"], 2),
            "callback on every message, CPU µs per message": round(costs["callbacks"], 2),
            "ours, CPU µs per message": round(costs["ours"], 2),
            "transaction of one message, median ms": round(latency * 1000, 1),
            "bytes per message": round(sum(len(m[2]) for m in batch) / rows),
        },
        "ratios": {
            "ours / plain, rate": round(rates["ours"] / rates["plain"], 2),
            "ours / plain, CPU": round(costs["ours"] / costs["plain"], 2),
            "callback on every message / plain, CPU": round(costs["callbacks"] / costs["plain"], 2),
        },
    }
