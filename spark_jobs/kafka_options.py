"""Options of Spark's Kafka source. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_SAME = ("security.protocol", "sasl.mechanism")


def range_options(
    bootstrap: str,
    security: Mapping[str, str],
    topic: str,
    offsets: Mapping[int, tuple[int, int]],
    min_partitions: int,
) -> dict[str, str]:
    """A batch read of exact offset ranges, of committed transactions only.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        security: librdkafka's options, secrets resolved.
        topic: Of the table.
        offsets: Partition to [start, end); partitions without offsets are left out.
        min_partitions: Number of tasks to cut the ranges into, at least.
    """
    touched = {str(p): pair for p, pair in offsets.items() if pair[0] < pair[1]}
    starts = {p: pair[0] for p, pair in touched.items()}
    ends = {p: pair[1] for p, pair in touched.items()}
    return {
        "kafka.bootstrap.servers": bootstrap,
        "assign": json.dumps({topic: sorted(int(p) for p in touched)}),
        "startingOffsets": json.dumps({topic: starts}),
        "endingOffsets": json.dumps({topic: ends}),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "minPartitions": str(min_partitions),
        "kafka.isolation.level": "read_committed",
        # A fetch waits this long for bytes that are not there yet, once per partition.
        "kafka.fetch.max.wait.ms": "5",
        "kafka.allow.auto.create.topics": "false",
        **java_security(security),
    }


def java_security(security: Mapping[str, str]) -> dict[str, str]:
    """Librdkafka's security options as Java's client spells them, with the prefix ``kafka.``."""
    options = {f"kafka.{key}": security[key] for key in _SAME if key in security}
    if "sasl.username" in security:
        module = (
            "org.apache.kafka.common.security.plain.PlainLoginModule"
            if security.get("sasl.mechanism", "PLAIN").upper() == "PLAIN"
            else "org.apache.kafka.common.security.scram.ScramLoginModule"
        )
        name, password = (
            _quoted(security.get(key, "")) for key in ("sasl.username", "sasl.password")
        )
        options["kafka.sasl.jaas.config"] = (
            f"{module} required username={name} password={password};"
        )
    if "ssl.ca.location" in security:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.location"] = security["ssl.ca.location"]
    if "ssl.certificate.location" in security:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = Path(
            security["ssl.certificate.location"]
        ).read_text()
        options["kafka.ssl.keystore.key"] = Path(security["ssl.key.location"]).read_text()
    if "ssl.key.password" in security:
        options["kafka.ssl.key.password"] = security["ssl.key.password"]
    return options


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
