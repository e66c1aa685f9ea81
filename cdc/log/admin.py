"""Topics on the broker: create, describe, delete, and where their logs begin and end."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from cdc.errors import CdcError, EnvironmentProblem, LogError
from cdc.log.kafka_errors import log_error
from cdc.log.settings import client_settings
from cdc.log.topics import TopicSpec

_POLL_SECONDS: Final = 0.02
_FENCED_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the broker describes it.

    Args:
        name: Of the topic.
        topic_id: Kafka's id, in its own text form (URL-safe base64); a topic that was deleted
            and created again has another.
        partitions: Their number.
        configs: Settings in force, in Kafka's spelling.
    """

    name: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]

    @property
    def max_message_bytes(self) -> int:
        """Largest batch of records that the broker takes, in bytes."""
        return int(self.configs["max.message.bytes"])

    @property
    def cleanup_policy(self) -> str:
        """``compact`` or ``delete``."""
        return self.configs["cleanup.policy"]


class PartitionOffsets(NamedTuple):
    """Where a partition's log begins and ends.

    Args:
        start: First offset that is there.
        last_stable: Every record below it belongs to a transaction that ended.
        end: Next offset to be written (the high watermark).
    """

    start: int
    last_stable: int
    end: int


class LogAdmin:
    """Administration of topics; all calls block for at most ``timeout`` seconds each.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        security: ``log.security`` with its secrets resolved.
        timeout: Limit of one call to the broker, seconds.

    All methods raise EnvironmentProblem ``kafka_unreachable`` or ``kafka_denied`` and LogError.
    """

    def __init__(
        self, bootstrap: str, security: Mapping[str, str] | None = None, *, timeout: float = 20.0
    ) -> None:
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._admin = AdminClient(client_settings(bootstrap, security))

    def create_topics(
        self, specs: Sequence[TopicSpec], *, accept_existing: bool = False
    ) -> dict[str, TopicInfo]:
        """Create topics and wait until each can be written.

        Args:
            specs: What to create.
            accept_existing: Take a topic that is there already, if its partitions and cleanup
                policy are as asked; else it is an error.

        Returns:
            What the broker made of them, by name.

        Raises:
            LogError: ``topic_exists``, ``topic_differs``, ``topic_collision`` (Kafka takes
                ``.`` and ``_`` for the same), ``topic_invalid``, all naming the topic. Topics
                before it in ``specs`` may have been created.
            EnvironmentProblem: ``topic_refused``.
        """
        if not specs:
            return {}
        first: CdcError | None = None
        deadline = time.monotonic() + self._timeout
        pending = list(specs)
        while pending:
            again = []
            for spec, future in self._create(pending):
                try:
                    self._result(future, f"creating topic {spec.name}", spec.name)
                except LogError as error:
                    if not (error.code == "topic_exists" and accept_existing):
                        first = first or error
                except EnvironmentProblem as error:
                    # A broker that has just started, or lags, is "fenced" for a moment.
                    if "fenced" in error.message and time.monotonic() < deadline:
                        again.append(spec)
                    else:
                        first = first or error
            pending = again
            if pending:
                time.sleep(_FENCED_SECONDS)
        if first is not None:
            raise first
        infos = self._wait_writable(specs)
        for spec in specs:
            info = infos[spec.name]
            policy = spec.configs.get("cleanup.policy", info.cleanup_policy)
            if info.partitions != spec.partitions or info.cleanup_policy != policy:
                raise LogError(
                    "topic_differs",
                    f"topic {spec.name} exists with {info.partitions} partitions and "
                    f"cleanup.policy={info.cleanup_policy}, not {spec.partitions} and {policy}",
                    remedy=f"delete topic {spec.name} if nothing needs it",
                )
        return infos

    def describe(self, topic: str) -> TopicInfo:
        """One topic; raises LogError ``topic_missing`` when it is not there."""
        found = self.describe_all([topic])
        if topic not in found:
            raise _missing(topic)
        return found[topic]

    def describe_all(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Those of ``topics`` that are there, with their settings."""
        described = self._described(topics)
        if not described:
            return {}
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in described}
        futures = self._admin.describe_configs(list(resources), request_timeout=self._timeout)
        infos = {}
        for resource, future in futures.items():
            name = resource.name
            entries = self._result(future, f"reading the settings of topic {name}", name)
            configs = {key: entry.value for key, entry in entries.items()}
            topic_id, partitions = described[name]
            infos[name] = TopicInfo(name, topic_id, partitions, configs)
        return infos

    def topic_ids(self, topics: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Topic id and number of partitions of those of ``topics`` that are there; one call."""
        return self._described(topics)

    def exists(self, topic: str) -> bool:
        """Whether the topic is there."""
        return bool(self._described([topic]))

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics and wait until they are gone; those that are not there are fine.

        Raises:
            LogError: ``kafka_timeout`` when one is still there at the end.
        """
        names = sorted(set(topics))
        if not names:
            return
        futures = self._admin.delete_topics(
            names, operation_timeout=self._timeout, request_timeout=self._timeout
        )
        for name, future in futures.items():
            try:
                self._result(future, f"deleting topic {name}", name)
            except LogError as error:
                if error.code != "topic_missing":
                    raise
        deadline = time.monotonic() + self._timeout
        while left := self._described(names):
            if time.monotonic() > deadline:
                raise LogError("kafka_timeout", f"still not deleted: topic {min(left)}")
            time.sleep(_POLL_SECONDS)

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """Start, last stable offset and end of each partition of a topic.

        Raises:
            LogError: ``topic_missing``.
        """
        described = self._described([topic])
        if topic not in described:
            raise _missing(topic)
        return self.offsets_of({topic: described[topic][1]})[topic]

    def offsets_of(self, topics: Mapping[str, int]) -> dict[str, dict[int, PartitionOffsets]]:
        """The same of many topics at once.

        Args:
            topics: Topic to its number of partitions.
        """
        # Committed before uncommitted, so that last_stable ≤ end although both move.
        committed, plain = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        starts = self._list_offsets(topics, OffsetSpec.earliest(), plain)
        stable = self._list_offsets(topics, OffsetSpec.latest(), committed)
        ends = self._list_offsets(topics, OffsetSpec.latest(), plain)
        return {
            topic: {
                p: PartitionOffsets(starts[topic, p], stable[topic, p], ends[topic, p])
                for p in range(partitions)
            }
            for topic, partitions in topics.items()
        }

    def written_ms(self, topic: str) -> int | None:
        """When partition 0 of a topic was last written, broker's clock, ms since 1970 UTC.

        None for an empty topic. Raises LogError ``topic_missing``.
        """
        asked = {TopicPartition(topic, 0): OffsetSpec.max_timestamp()}
        futures = self._admin.list_offsets(asked, request_timeout=self._timeout)
        doing = f"reading the newest time of topic {topic}"
        found = self._result(next(iter(futures.values())), doing, topic)
        return found.timestamp if found.timestamp > 0 else None

    def _create(self, specs: Sequence[TopicSpec]) -> list[tuple[TopicSpec, Future[Any]]]:
        new = [
            NewTopic(
                s.name,
                num_partitions=s.partitions,
                replication_factor=s.replication_factor,
                config=dict(s.configs),
            )
            for s in specs
        ]
        futures = self._admin.create_topics(
            new, operation_timeout=self._timeout, request_timeout=self._timeout
        )
        return [(spec, futures[spec.name]) for spec in specs]

    def _list_offsets(
        self, topics: Mapping[str, int], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[tuple[str, int], int]:
        asked = {
            TopicPartition(topic, p): spec
            for topic, partitions in topics.items()
            for p in range(partitions)
        }
        if not asked:
            return {}
        futures = self._admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=self._timeout
        )
        found = {}
        for tp, future in futures.items():
            doing = f"reading the offsets of topic {tp.topic}"
            found[tp.topic, tp.partition] = self._result(future, doing, tp.topic).offset
        return found

    def _described(self, topics: Iterable[str]) -> dict[str, tuple[str, int]]:
        names = sorted(set(topics))
        if not names:
            return {}
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self._timeout)
        found = {}
        for name, future in futures.items():
            try:
                description = self._result(future, f"describing topic {name}", name)
            except LogError as error:
                if error.code == "topic_missing":
                    continue
                raise
            found[name] = (_id_text(description.topic_id), len(description.partitions))
        return found

    def _wait_writable(self, specs: Sequence[TopicSpec]) -> dict[str, TopicInfo]:
        """Wait until every partition has a leader that answers."""
        deadline = time.monotonic() + self._timeout
        sizes = {spec.name: spec.partitions for spec in specs}
        while True:
            infos = self.describe_all(sizes)
            missing = sizes.keys() - infos.keys()
            if not missing:
                try:
                    actual = {name: info.partitions for name, info in infos.items()}
                    self._list_offsets(
                        actual, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED
                    )
                    return infos
                except CdcError:
                    # A leader that is not elected yet; the deadline tells it from an outage.
                    if time.monotonic() > deadline:
                        raise
            elif time.monotonic() > deadline:
                raise LogError(
                    "kafka_timeout", f"topic {min(missing)} does not appear on the broker"
                )
            time.sleep(_POLL_SECONDS)

    def _result(self, future: Future[Any], doing: str, topic: str | None = None) -> Any:
        try:
            # The client's own limit applies; this one is for a client that forgot.
            return future.result(timeout=self._timeout + 10)
        except KafkaException as problem:
            raise log_error(
                problem, f"{doing} on {self._bootstrap}", topic=topic, connecting=True
            ) from None
        except TimeoutError:
            raise LogError("kafka_timeout", f"no answer while {doing}") from None


def _missing(topic: str) -> LogError:
    return LogError("topic_missing", f"topic {topic} is not on the broker")


def _id_text(topic_id: Uuid) -> str:
    bits = ((topic_id.get_most_significant_bits() & 0xFFFF_FFFF_FFFF_FFFF) << 64) | (
        topic_id.get_least_significant_bits() & 0xFFFF_FFFF_FFFF_FFFF
    )
    return base64.urlsafe_b64encode(bits.to_bytes(16, "big")).decode().rstrip("=")
