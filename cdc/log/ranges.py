"""Reads exact offset ranges of the log, committed transactions only.

A range ends exactly at its end offset, although compaction and transaction markers leave gaps
(often the last offsets of a range are markers): a partition is done when a record at or above
``end - 1`` arrives, or the broker says that it has nothing below ``end`` any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.closing import Closing
from cdc.errors import CdcError, LogError
from cdc.log.kafka_errors import kafka_error, log_error
from cdc.log.settings import client_settings

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata

# Not structlog: `cdc query` reads through here, and its import takes 0.2 s.
log = logging.getLogger(__name__)

#: Offset, key, value (None: a tombstone) and headers of a record.
RawRecord = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]] | None]

_BATCH: Final = 2000
_SLICE_SECONDS: Final = 1.0
_TRUNCATION: Final = frozenset(
    {KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}  # noqa: SLF001
)


class Range(NamedTuple):
    """Offsets ``[start, end)`` of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class Bounds(NamedTuple):
    """What of a partition can be read: ``[start, last_stable)``."""

    start: int
    last_stable: int


class RangeReader(Closing):
    """One consumer, assigned anew for each read; not for use by several threads.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        security: ``log.security`` with its secrets resolved.
        timeout: Longest wait without any progress, seconds.
        refused_after: Seconds after which the first question fails if every broker refuses to be
            connected to; None: they may be starting, it fails after ``timeout``.
    """

    def __init__(
        self,
        bootstrap: str,
        security: Mapping[str, str] | None = None,
        *,
        timeout: float = 30.0,
        refused_after: float | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._security = security
        self._timeout = timeout
        self._refused_after = min(timeout, timeout if refused_after is None else refused_after)
        self._refused = False
        self._reads = 0
        self._known: set[str] = set()
        self._client_error: KafkaError | None = None
        self._consumer = self._new_consumer("read_committed")

    def bounds(self, topic: str, partition: int = 0) -> Bounds:
        """Start and last stable offset of a partition.

        Raises:
            LogError: ``topic_missing``.
            EnvironmentProblem: ``kafka_unreachable``, ``kafka_denied``.
        """
        # The client waits for metadata of an unknown topic; asking for it answers at once.
        self._check_topic(topic)
        try:
            low, stable = self._consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=self._timeout
            )
        except KafkaException as problem:
            self._known.discard(topic)
            raise self._error(problem, f"reading the offsets of {topic}", topic) from None
        return Bounds(low, stable)

    def read(self, ranges: Iterable[Range]) -> Iterator[tuple[str, int, list[RawRecord]]]:
        """The committed records of ranges, all partitions fetched at the same time.

        Args:
            ranges: At most one range per partition; empty ones are left out.

        Yields:
            Topic, partition and the next records of it, in the order of their offsets.

        Raises:
            LogError: ``truncated_topic`` (the log ends before a range's end),
                ``log_start_moved`` (records of a range are gone), ``open_transaction`` (a
                transaction that began before a range's end does not end), ``read_timeout``,
                ``topic_missing``; each names the topic.
        """
        wanted = {(r.topic, r.partition): r for r in ranges if r.start < r.end}
        if not wanted:
            return
        for topic in {topic for topic, _ in wanted}:
            self._check_topic(topic)
        self._reads += 1
        token = self._reads
        self._consumer.assign(
            [TopicPartition(r.topic, r.partition, r.start) for r in wanted.values()]
        )
        try:
            yield from self._drain(wanted, token)
        finally:
            if token == self._reads:
                self._consumer.unassign()

    def close(self) -> None:
        """Let go of the client; nothing is committed, for there is no group."""
        self._consumer.close()

    # --- inside ---

    def _new_consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                **client_settings(self._bootstrap, self._security),
                # Required by the client; we assign partitions and never commit to a group.
                "group.id": "cdc-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "check.crcs": True,
                # A fetch that waits at the broker delays the next read of this consumer.
                "fetch.wait.max.ms": 5,
                "fetch.queue.backoff.ms": 5,
                "fetch.error.backoff.ms": 50,
                "queued.max.messages.kbytes": 32 * 1024,
                "error_cb": self._on_client_error,
            }
        )

    def _check_topic(self, topic: str) -> None:
        if topic in self._known:
            return
        try:
            found = self._metadata(topic).topics.get(topic)
        except KafkaException as problem:
            raise self._error(problem, f"looking for topic {topic}", topic) from None
        if found is None or found.error is not None:
            error = found.error if found is not None else None
            if error is None or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise LogError("topic_missing", f"topic {topic} is not on the broker")
            raise log_error(error, f"looking for topic {topic}", topic=topic)
        self._known.add(topic)

    def _metadata(self, topic: str) -> ClusterMetadata:
        try:
            return self._consumer.list_topics(topic, timeout=self._refused_after)
        except KafkaException:
            left = self._timeout - self._refused_after
            # Has the client say what it met meanwhile. A broker that is only slow refuses nothing.
            self._consumer.poll(0)
            if self._refused or left <= 0:
                raise
        return self._consumer.list_topics(topic, timeout=left)

    def _drain(
        self, wanted: dict[tuple[str, int], Range], token: int
    ) -> Iterator[tuple[str, int, list[RawRecord]]]:
        left = {slot: r.end for slot, r in wanted.items()}
        behind: dict[tuple[str, int], int] = {}
        progress = time.monotonic()
        while left:
            if token != self._reads:
                raise RuntimeError("a reader serves one read at a time; another has begun")
            first = self._consumer.poll(_SLICE_SECONDS)
            if first is None:
                if time.monotonic() - progress > self._timeout:
                    raise self._stuck(left, behind)
                continue
            # consume() waits until it is full: take only what is there by now.
            messages = [first, *self._consumer.consume(_BATCH, 0)]
            batches: dict[tuple[str, int], list[RawRecord]] = {}
            for message in messages:
                slot = (message.topic(), message.partition())
                end = left.get(slot)
                if end is None:
                    continue
                offset = message.offset()
                error = message.error()
                if error is None:
                    if offset < end:
                        record = (offset, message.key(), message.value(), message.headers())
                        batch = batches.get(slot)
                        if batch is None:
                            batches[slot] = [record]
                        else:
                            batch.append(record)
                        if offset < end - 1:
                            continue
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    if offset < end:
                        if behind.get(slot) is None:
                            self._check_end(wanted[slot])
                        behind[slot] = offset
                        continue
                else:
                    raise self._read_error(error, wanted[slot])
                del left[slot]
            progress = time.monotonic()
            for (topic, partition), batch in batches.items():
                yield topic, partition, batch
                # The consumer of the batches may take its time; that is not ours.
                progress = time.monotonic()

    def _check_end(self, wanted: Range) -> None:
        """The broker has no more below ``end``: is a transaction open, or the log too short?"""
        log_end = self._log_end(wanted)
        if wanted.end > log_end:
            raise LogError(
                "truncated_topic",
                f"topic {wanted.topic}[{wanted.partition}] ends at {log_end}, "
                f"but the log has been written up to {wanted.end}",
                remedy="the topic was truncated or created again: it needs a new load",
            )
        log.debug("waiting for a transaction to end: %s", wanted.topic)

    def _log_end(self, wanted: Range) -> int:
        # Only a client that reads uncommitted is told of the end; the need for it is rare.
        consumer = self._new_consumer("read_uncommitted")
        try:
            _, end = consumer.get_watermark_offsets(
                TopicPartition(wanted.topic, wanted.partition), timeout=self._timeout
            )
        except KafkaException as problem:
            topic = wanted.topic
            raise self._error(problem, f"reading the offsets of {topic}", topic) from None
        finally:
            consumer.close()
        return int(end)

    def _read_error(self, error: KafkaError, wanted: Range) -> CdcError:
        where = f"topic {wanted.topic}[{wanted.partition}]"
        if error.code() in _TRUNCATION:
            bounds = self.bounds(wanted.topic, wanted.partition)
            if wanted.start < bounds.start:
                return LogError(
                    "log_start_moved",
                    f"{where} starts at {bounds.start}, records from {wanted.start} on are gone",
                    remedy="the topic's retention removed history: rebuild, or begin a new load",
                )
            return LogError(
                "truncated_topic",
                f"{where} does not reach to {wanted.start}, where reading was to begin",
                remedy="the topic was truncated or created again: it needs a new load",
            )
        self._known.discard(wanted.topic)
        return log_error(error, f"reading {where}", topic=wanted.topic)

    def _stuck(
        self, left: dict[tuple[str, int], int], behind: dict[tuple[str, int], int]
    ) -> CdcError:
        (topic, partition), end = min(left.items())
        if (topic, partition) in behind:
            return LogError(
                "open_transaction",
                f"topic {topic}[{partition}] is stable up to {behind[topic, partition]} only, "
                f"{end} is asked for: a transaction has been open for {self._timeout:.0f} s",
                remedy="start the capture that wrote it; it ends what it left open",
            )
        if self._client_error is not None:
            return log_error(
                self._client_error, f"reading topic {topic}[{partition}]", connecting=True
            )
        return LogError(
            "read_timeout", f"nothing came from topic {topic}[{partition}] up to offset {end}"
        )

    def _on_client_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._refused = True
        if self._client_error is None or self._client_error.code() != error.code():
            log.debug("kafka client: %s", error.name())
        self._client_error = error

    def _error(self, problem: KafkaException, doing: str, topic: str) -> CdcError:
        cause = kafka_error(problem)
        mapped = log_error(cause, f"{doing} on {self._bootstrap}", topic=topic, connecting=True)
        if mapped.code == "kafka_unreachable" and self._client_error is not None:
            # The call only says that it timed out; the client knows whether it was refused.
            better = log_error(
                self._client_error, f"{doing} on {self._bootstrap}", topic=topic, connecting=True
            )
            return better if better.code == "kafka_denied" else mapped
        return mapped
