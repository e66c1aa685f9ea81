"""Where the messages of a Kafka transaction ended, as their delivery reports tell. No I/O."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message

from cdc.errors import LogError
from cdc.frontier import Ends


class EndTracker:
    """Ends of the open transaction, and of those before: they only grow."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, int], int] = {}
        # While topics stay themselves.
        self._newest: dict[tuple[str, int], int] = {}
        #: Of the open transaction, as far as they were taken.
        self.ends: Ends = {}
        #: The first message that was not delivered: its topic and why.
        self.error: tuple[str, KafkaError] | None = None

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """A delivery report of librdkafka."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None:
            self.error = self.error or (topic, error)
        elif offset is not None and offset >= 0:
            self._reported[topic, partition] = offset + 1

    def take(self, topic: str, partition: int) -> None:
        """Take the end of a partition whose last message was reported.

        Raises:
            LogError: ``transaction_aborted``: it was not; ``truncated_topic``: it lies below
                an earlier end.
        """
        end = self._reported.get((topic, partition))
        if end is None:
            raise LogError(
                "transaction_aborted",
                f"Kafka did not say where a message for {topic}[{partition}] was written",
            )
        earlier = max(
            self._newest.get((topic, partition), 0), self.ends.get(topic, {}).get(partition, 0)
        )
        if end <= earlier:
            raise LogError(
                "truncated_topic",
                f"topic {topic}[{partition}] ends at {end}, below its earlier end {earlier}",
                remedy="the topic was truncated or created again: it needs a new load",
            )
        self.ends.setdefault(topic, {})[partition] = end

    def committed(self) -> None:
        """The transaction is committed: later ends lie above its own."""
        for topic, parts in self.ends.items():
            for partition, end in parts.items():
                self._newest[topic, partition] = end

    def clear(self) -> None:
        """A transaction begins, or is thrown away."""
        self.ends = {}
        self._reported.clear()
        self.error = None
