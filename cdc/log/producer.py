"""The transactional producer: whole transactions, with their end offsets known before commit.

A delivery callback on every message halves throughput, so one message per partition is held
back and only the last one of a transaction carries a callback; its offset + 1 is the end.
The messages before it need none: a partition of an idempotent producer is written in order,
and librdkafka refuses to commit a transaction of which any message failed, with or without
callback (seen for messages over the broker's limit, for unknown partitions and for timeouts;
tests/servers/test_log_producer.py holds it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException

from cdc.closing import Closing
from cdc.errors import CdcError, LogError
from cdc.frontier import Ends
from cdc.log.ends import EndTracker
from cdc.log.kafka_errors import CLIENT_ERRORS, kafka_error, log_error, record_too_large
from cdc.log.producer_client import (
    SLICE_SECONDS,
    Headers,
    Held,
    OnDelivery,
    ProducerClient,
    boot_time,
    record_size,
)

log = structlog.get_logger(__name__)

_NEW, _READY, _OPEN, _SPENT = "new", "ready", "in a transaction", "spent"

_BROKER_DEFAULT_MAX_BYTES: Final = 1_048_588
_MIB: Final = 1024 * 1024
# Reports of delivered messages pile up, with the messages, until somebody polls.
_SENDS_PER_POLL: Final = 500
_ABORT_SECONDS: Final = 15.0
# Errors of single calls and messages after a transaction has failed as a whole.
_CONSEQUENCES: Final = frozenset(
    {
        KafkaError._STATE,  # noqa: SLF001
        KafkaError._FATAL,  # noqa: SLF001
        KafkaError._PURGE_QUEUE,  # noqa: SLF001
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
    }
)


class TransactionalProducer(Closing):
    """A producer that writes in Kafka transactions only; not for use by several threads.

    ``init()`` once, then ``begin() … send() … ends() … send_reported() … commit()``, again and
    again. Whatever raises inside a transaction has aborted it (or the producer is spent: see
    ``spent``); an error of ``commit`` with the code ``commit_unknown`` leaves open what became
    of it, and only reading the log after the ``init()`` of a new producer tells.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        transactional_id: A newer producer of the same id fences this one.
        security: ``log.security`` with its secrets resolved.
        max_message_bytes: The smallest ``max.message.bytes`` of the topics written to.
        queue_bytes: Bound of what waits in memory; raised to twice the largest record.
        transaction_timeout: The broker aborts transactions that are open for longer, seconds.
        waiting: Called about twice a second while a call waits for the broker, so that the
            caller can keep other peers alive; may raise to give up.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        security: Mapping[str, str] | None = None,
        *,
        max_message_bytes: int = _BROKER_DEFAULT_MAX_BYTES,
        queue_bytes: int = 32 * _MIB,
        transaction_timeout: float = 60.0,
        waiting: Callable[[], None] | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.max_message_bytes = max_message_bytes
        self._bootstrap = bootstrap
        self._timeout = transaction_timeout
        self._state = _NEW
        self._begun = 0.0
        self._unpolled = 0
        # (topic, partition) → (value, key, headers) of the newest message, not yet produced.
        self._held: dict[tuple[str, int], Held] = {}
        self._tracker = EndTracker()
        self._half_limit = max_message_bytes // 2
        self._client = ProducerClient(
            bootstrap,
            transactional_id,
            security,
            max_message_bytes=max_message_bytes,
            queue_bytes=queue_bytes,
            transaction_timeout=transaction_timeout,
            waiting=waiting,
        )
        self._use_client()

    @property
    def spent(self) -> bool:
        """Whether only a new producer can go on: fenced, failed or of unknown outcome."""
        return self._state == _SPENT

    def init(self, timeout: float = 30.0) -> None:
        """Register the transactional id: fences older producers, ends their transactions.

        Raises:
            EnvironmentProblem: ``kafka_unreachable``, ``kafka_denied``.
            LogError: Anything else that the broker says.
        """
        if self._state != _NEW:
            raise RuntimeError(f"init() of a producer that is {self._state}")
        doing = f"registering transactional id {self.transactional_id} on {self._bootstrap}"
        try:
            self._client.retried(self._producer.init_transactions, timeout)
        except CLIENT_ERRORS as problem:
            self._state = _SPENT
            cause = self._client.last_error or kafka_error(problem)
            raise log_error(cause, doing, connecting=True) from None
        self._state = _READY

    def begin(self) -> None:
        """Open a transaction."""
        if self._state != _READY:
            raise RuntimeError(f"begin() of a producer that is {self._state}")
        self._clear()
        try:
            self._producer.begin_transaction()
        except CLIENT_ERRORS as problem:
            raise self._failed(problem, "beginning a transaction") from None
        self._begun = boot_time()
        self._state = _OPEN

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> None:
        """Take a message into the transaction; hot, so produce() gets its arguments unnamed.

        Raises:
            LogError: ``record_too_large`` for this message; any other error may belong to
                messages before it.
        """
        if value is not None and len(value) > self._half_limit:
            self._check_size(topic, partition, key, value, headers)
        slot = (topic, partition)
        held = self._held.get(slot)
        self._held[slot] = (value, key, headers)
        if held is None:
            if self._state != _OPEN:
                raise RuntimeError(f"send() of a producer that is {self._state}")
            return
        try:
            try:
                self._produce(topic, held[0], held[1], partition, None, None, 0, held[2])
            except BufferError:
                self._client.produce_when_room(topic, partition, held, None)
            self._unpolled += 1
            if self._unpolled >= _SENDS_PER_POLL:
                self._unpolled = 0
                self._producer.poll(0)
        except CLIENT_ERRORS as problem:
            raise self._failed(problem, f"writing to topic {topic}", topic) from None

    def send_all(
        self,
        topic: str,
        partitions: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes],
        headers: Sequence[Headers],
    ) -> bool:
        """Take messages of one topic into the transaction, in their order; hot like ``send``.

        Returns:
            False, and none was taken, if one of them may be over the limit: ``send`` tells.

        Raises:
            LogError: As ``send``.
        """
        if max(map(len, values), default=0) > self._half_limit:
            return False
        self._must_be_open("send_all()")
        held = self._held
        newest = {partition: i for i, partition in enumerate(partitions)}
        before = [(p, held[topic, p]) for p in newest if (topic, p) in held]
        messages = list(zip(partitions, keys, values, headers, strict=True))
        try:
            for partition, message in before:
                self._hand_over(topic, partition, message)
            for partition, i in newest.items():
                held[topic, partition] = (values[i], keys[i], headers[i])
            # Each partition's last message stays back.
            for i in sorted(newest.values(), reverse=True):
                del messages[i]
            produce = self._produce
            for partition, key, value, header in messages:
                try:
                    produce(topic, value, key, partition, None, None, 0, header)
                except BufferError:
                    self._client.produce_when_room(topic, partition, (value, key, header), None)
            self._unpolled += len(partitions)
            if self._unpolled >= _SENDS_PER_POLL:
                self._unpolled = 0
                self._producer.poll(0)
        except CLIENT_ERRORS as problem:
            raise self._failed(problem, f"writing to topic {topic}", topic) from None
        return True

    def ends(self) -> Ends:
        """Send what is held back, wait until all is written, and say where it ends.

        Returns:
            For each partition written to since ``begin``, the offset after its last message.

        Raises:
            LogError: The transaction is aborted: a message was not delivered, came back
                without an offset, or ended below an earlier one (``truncated_topic``).
        """
        self._must_be_open("ends()")
        for (topic, partition), held in self._held.items():
            try:
                self._hand_over(topic, partition, held, self._tracker.on_delivery)
            except CLIENT_ERRORS as problem:
                raise self._failed(problem, f"writing to topic {topic}", topic) from None
        sent = list(self._held)
        self._held.clear()
        self._flush()
        try:
            for topic, partition in sent:
                self._tracker.take(topic, partition)
        except LogError:
            self._abort_quietly()
            raise
        return {topic: dict(parts) for topic, parts in self._tracker.ends.items()}

    def send_reported(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
    ) -> int:
        """Send one message and wait for it.

        Returns:
            The offset after it.
        """
        self.send(topic, partition, key, value, headers)
        return self.ends()[topic][partition]

    def commit(self) -> None:
        """Commit the transaction; durable on return, visible to readers a moment later.

        The broker answers when the decision is written and marks the partitions afterwards,
        each on its own: readers have to wait for their end offsets, as RangeReader does.
        ``init()`` returns only when all marks of earlier transactions are there.

        Raises:
            LogError: ``commit_unknown`` when the broker does not answer (the producer is
                spent and the transaction may or may not be there); ``producer_fenced``;
                otherwise the transaction is aborted.
        """
        self._must_be_open("commit()")
        if self._held:
            raise RuntimeError("commit() before ends(): messages are held back")
        # Once asked to commit, librdkafka takes no abort any more; so all that can be waited
        # for is waited for first, and until an answer is there the producer counts as spent.
        self._flush()
        self._state = _SPENT
        try:
            self._client.retried(self._producer.commit_transaction, self._timeout)
        except CLIENT_ERRORS as problem:
            error = kafka_error(problem)
            if error.txn_requires_abort() and not error.retriable():
                self._state = _OPEN
            elif not error.fatal():
                raise LogError(
                    "commit_unknown",
                    f"Kafka does not answer a commit ({error.name()}): it may have happened",
                    remedy="start again from the last frontier in the log",
                ) from None
            raise self._failed(problem, "committing a transaction") from None
        self._tracker.committed()
        self._clear()
        self._state = _READY

    def abort(self) -> None:
        """Abort the transaction, if one is open; a spent producer has none to abort.

        Raises:
            LogError: The abort did not get through; the producer is spent.
        """
        if self._state != _OPEN:
            return
        self._clear()
        self._state = _SPENT
        try:
            self._client.retried(self._producer.abort_transaction, _ABORT_SECONDS)
        except CLIENT_ERRORS as problem:
            if kafka_error(problem).code() != KafkaError.INVALID_TXN_STATE:
                raise log_error(problem, "aborting a transaction") from None
            log.debug("aborted before the broker knew of it", id=self.transactional_id)
            # The one before was still being completed; the client takes that for a fatal error.
            self._client.renew()
            self._use_client()
            self._state = _NEW
            self.init()
            return
        self._state = _READY

    def too_large(self, key: bytes | None, value: bytes | None, headers: Headers | None) -> bool:
        """Whether a message, uncompressed, may exceed the limit of the topics."""
        return record_size(key, value, headers) > self.max_message_bytes

    def close(self) -> None:
        """Abort what is open, as far as the broker answers, and let go of the client."""
        try:
            self.abort()
        except CdcError as error:
            log.warning("abort at close failed", code=error.code)
        self._state = _SPENT
        self._clear()
        self._client.close()

    # --- inside ---

    def _use_client(self) -> None:
        self._producer = self._client.kafka
        self._produce = self._producer.produce

    def _hand_over(
        self, topic: str, partition: int, held: Held, on_delivery: OnDelivery | None = None
    ) -> None:
        try:
            self._produce(
                topic, held[0], held[1], partition, headers=held[2], on_delivery=on_delivery
            )
        except BufferError:
            self._client.produce_when_room(topic, partition, held, on_delivery)

    def _must_be_open(self, call: str) -> None:
        if self._state != _OPEN:
            raise RuntimeError(f"{call} of a producer that is {self._state}")

    def _clear(self) -> None:
        self._held.clear()
        self._tracker.clear()

    def _check_size(
        self, topic: str, partition: int, key: bytes | None, value: bytes, headers: Headers | None
    ) -> None:
        if self.too_large(key, value, headers):
            self._abort_quietly()
            raise record_too_large(
                f"a record of {len(value)} bytes for topic {topic}[{partition}] exceeds "
                f"its limit of {self.max_message_bytes} bytes"
            )

    def _flush(self) -> None:
        try:
            self._client.flush(self._timeout + 5)
        except CLIENT_ERRORS as problem:
            raise self._failed(problem, "waiting for messages to be written") from None
        if self._tracker.error is not None:
            topic, error = self._tracker.error
            raise self._failed(KafkaException(error), f"writing to topic {topic}", topic)

    def _failed(
        self, problem: KafkaException | SystemError, doing: str, topic: str | None = None
    ) -> CdcError:
        """Abort as far as possible and make our error, with librdkafka's own cause."""
        error = self._cause(kafka_error(problem))
        mapped = log_error(error, doing, topic=topic)
        if error.fatal() or mapped.code == "producer_fenced":
            self._state = _SPENT
            if mapped.code == "producer_fenced" and self._expired():
                # The broker fences a producer whose transaction it timed out, and says the
                # same as when another one has taken over.
                return LogError(
                    "transaction_expired",
                    f"a transaction was open for longer than {self._timeout:.0f} s and Kafka "
                    f"ended it, while {doing}",
                )
        else:
            self._abort_quietly()
        return mapped

    def _cause(self, error: KafkaError) -> KafkaError:
        """What is behind "erroneous state", "fatal error" and "purged", which only follow."""
        if self._state == _OPEN and error.code() in _CONSEQUENCES:
            # Not a commit: librdkafka left the state in which one can succeed, for good.
            try:
                self._producer.commit_transaction(SLICE_SECONDS)
            except CLIENT_ERRORS as cause:
                return kafka_error(cause)
        return error

    def _expired(self) -> bool:
        return self._begun > 0 and boot_time() - self._begun >= self._timeout

    def _abort_quietly(self) -> None:
        """Abort while another error is on its way; failing that the producer is spent."""
        try:
            self.abort()
        except CdcError as error:
            log.warning("abort failed", code=error.code)
