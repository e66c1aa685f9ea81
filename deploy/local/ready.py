"""Whether a server answers as a client needs it to."""

from __future__ import annotations

import socket
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient


def postgres_answers(conninfo: dict[str, Any]) -> bool:
    """Whether a connection succeeds; waits up to two seconds for it."""
    try:
        with psycopg.connect(**conninfo, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


class KafkaProbe:
    """Asks one broker for metadata, over one client.

    Args:
        host: Address of the broker's listener.
        port: Its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._admin: AdminClient | None = None

    def answers(self) -> bool:
        """Whether the broker lists itself as a member; waits up to two seconds for it."""
        if self._admin is None:
            # A client that meets a closed port would wait out its reconnect backoff.
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.settimeout(1)
                if probe.connect_ex((self._host, self._port)) != 0:
                    return False
            self._admin = AdminClient(
                {
                    "bootstrap.servers": f"{self._host}:{self._port}",
                    "broker.address.family": "v4",
                    "reconnect.backoff.max.ms": 100,
                    "log_level": 0,
                }
            )
        try:
            return bool(self._admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False
