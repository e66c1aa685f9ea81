"""librdkafka's transactional producer, with its blocking calls cut into slices. No state of ours.

Its contract: a transactional call that timed out, or failed with a retriable error, resumes
when it is called again; an abortable error wants an abort; a fatal one ends the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.log.kafka_errors import CLIENT_ERRORS, kafka_error
from cdc.log.settings import client_settings

log = structlog.get_logger(__name__)

Headers = Sequence[tuple[str, bytes]]
#: Value, key and headers of a message that is not yet with the client.
Held = tuple[bytes | None, bytes | None, Headers | None]
OnDelivery = Callable[[KafkaError | None, Message], None]

# Blocking calls are cut into slices, so that ``waiting`` is called in between.
SLICE_SECONDS: Final = 0.5
# Upper bound of what Kafka adds to a record that is alone in its batch, and to a header.
_RECORD_OVERHEAD, _HEADER_OVERHEAD = 128, 10
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ProducerClient:
    """The client of one transactional id.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        transactional_id: A newer producer of the same id fences this one.
        security: ``log.security`` with its secrets resolved.
        max_message_bytes: Limit of one message.
        queue_bytes: Bound of what waits in memory; raised to twice the largest message.
        transaction_timeout: Of transactions and of messages, seconds.
        waiting: Called between slices; may raise to give up.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        security: Mapping[str, str] | None,
        *,
        max_message_bytes: int,
        queue_bytes: int,
        transaction_timeout: float,
        waiting: Callable[[], None] | None,
    ) -> None:
        self._waiting = waiting
        #: The newest error that the client reported by itself.
        self.last_error: KafkaError | None = None
        timeout_ms = int(transaction_timeout * 1000)
        self._settings = {
            **client_settings(bootstrap, security),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
            "message.max.bytes": max_message_bytes,
            "batch.size": max(1000, min(1_000_000, max_message_bytes - 4096)),
            "queue.buffering.max.kbytes": max(queue_bytes, 2 * max_message_bytes) // 1024 + 1,
            "error_cb": self._on_error,
        }
        self.kafka = Producer(self._settings)

    def renew(self) -> None:
        """Throw the client away, with all that it knows, for a new one."""
        self.close()
        self.last_error = None
        self.kafka = Producer(self._settings)

    def close(self) -> None:
        """Throw away what is not sent; nothing is waited for."""
        try:
            self.kafka.purge()
            self.kafka.poll(0)
        except CLIENT_ERRORS as problem:
            # A fenced client says so at every call; there is nothing left to lose.
            log.debug("client closed", reason=kafka_error(problem).name())

    def retried(self, call: Callable[[float], Any], timeout: float) -> None:
        """Call again after each time slice and each retriable error, until ``timeout``.

        Raises:
            KafkaException, SystemError: See ``kafka_errors.CLIENT_ERRORS``.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                call(SLICE_SECONDS)
                return
            except CLIENT_ERRORS as problem:
                error = kafka_error(problem)
                if not error.retriable() or time.monotonic() > deadline:
                    raise
                if error.code() != KafkaError._TIMED_OUT:  # noqa: SLF001
                    time.sleep(0.05)
            self._wait()

    def flush(self, timeout: float) -> None:
        """Wait until every message was delivered or failed; raises as ``retried``."""
        deadline = time.monotonic() + timeout
        while self.kafka.flush(SLICE_SECONDS) > 0:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
            self._wait()

    def produce_when_room(
        self, topic: str, partition: int, held: Held, on_delivery: OnDelivery | None
    ) -> None:
        """Produce after the queue was full; raises as ``retried``.

        Bounded: messages that cannot be delivered time out and make room.
        """
        called = time.monotonic()
        while True:
            self.kafka.poll(0.1)
            try:
                self.kafka.produce(
                    topic, held[0], held[1], partition, headers=held[2], on_delivery=on_delivery
                )
                return
            except BufferError:
                now = time.monotonic()
                if now - called > SLICE_SECONDS:
                    called = now
                    self._wait()

    def _wait(self) -> None:
        if self._waiting is not None:
            self._waiting()

    def _on_error(self, error: KafkaError) -> None:
        if self.last_error is None or self.last_error.code() != error.code():
            log.debug("kafka client", reason=error.name(), fatal=error.fatal())
        self.last_error = error


def record_size(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """Upper bound of a message's size, uncompressed and alone in its batch, in bytes."""
    size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, text in headers or ():
        size += _HEADER_OVERHEAD + len(name) + len(text)
    return size


def boot_time() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(_BOOT_CLOCK)
