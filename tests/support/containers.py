"""Postgres and Kafka in containers, for machines with a Docker engine."""

from __future__ import annotations

import gc
import secrets
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import docker
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer

from cdc.errors import EnvironmentProblem
from deploy.local import settings
from deploy.local.databases import create_database, drop_database
from deploy.local.ports import choose_port
from deploy.local.ready import KafkaProbe, postgres_answers

POSTGRES_IMAGE = "postgres:17"
KAFKA_IMAGE = "apache/kafka:4.2.2"
_CONTROLLER_PORT = 9093


def check_engine() -> None:
    """Ask the Docker engine for a sign of life.

    Raises:
        EnvironmentProblem: ``no_container_engine``.
    """
    with warnings.catch_warnings():
        # docker leaves the socket of a refused connection to the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _engine_answers()
        gc.collect()
    if not answers:
        raise EnvironmentProblem(
            "no_container_engine",
            "CDC_TEST_STACK=containers needs a Docker engine, and none answers",
            remedy="start one or set DOCKER_HOST, or unset CDC_TEST_STACK for local servers",
        )


def _engine_answers() -> bool:
    try:
        client = docker.from_env()
        try:
            return bool(client.ping())
        finally:
            client.close()
    except DockerException:
        return False


class _Container(ABC):
    """A container whose published port stays when it is stopped and started again.

    Args:
        container: Not yet started.
        port: Port inside and outside.
    """

    def __init__(self, container: DockerContainer, port: int) -> None:
        # A port that the engine chooses changes with every start; a bound one does not.
        self._container = container.with_bind_ports(port, port)
        self._created = False
        self.port = port
        self.host = container.get_docker_client().host()

    def start(self) -> None:
        if self._created:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._created = True
        self.wait_ready()

    def stop(self) -> None:
        self._container.get_wrapped_container().stop(timeout=30)

    def kill9(self) -> None:
        container = self._container.get_wrapped_container()
        container.kill(signal="SIGKILL")
        container.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def running(self) -> bool:
        container = self._container.get_wrapped_container()
        container.reload()
        return bool(container.status == "running")

    def wait_ready(self, timeout: float = 60) -> None:
        self._wait(self.answers, timeout)

    @abstractmethod
    def answers(self) -> bool: ...

    def remove(self) -> None:
        self._container.stop()

    def _wait(self, answers: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not answers():
            if time.monotonic() >= deadline:
                logs = b"".join(self._container.get_logs())[-2000:].decode(errors="replace")
                raise TimeoutError(f"{self._container.image} does not answer: {logs}")
            time.sleep(0.1)


class PostgresContainer(_Container):
    """Postgres with the local stack's settings."""

    def __init__(self) -> None:
        self._password = secrets.token_urlsafe(24)
        port = choose_port()
        values = settings.POSTGRES | {"port": str(port), "fsync": "off"}
        command = ["postgres"]
        for name, value in values.items():
            command += ["-c", f"{name}={value}"]
        container = DockerContainer(POSTGRES_IMAGE).with_command(command)
        super().__init__(container.with_env("POSTGRES_PASSWORD", self._password), port)

    def answers(self) -> bool:
        return postgres_answers(self.conninfo())

    def conninfo(self, dbname: str = "postgres") -> dict[str, Any]:
        return {
            "host": self.host,
            "port": self.port,
            "user": "postgres",
            "password": self._password,
            "dbname": dbname,
        }

    def create_database(self, name: str, options: str = "") -> dict[str, Any]:
        create_database(self.conninfo(), name, options)
        return self.conninfo(name)

    def drop_database(self, name: str) -> None:
        drop_database(self.conninfo(), name)


class KafkaContainer(_Container):
    """A broker with the local stack's settings."""

    def __init__(self) -> None:
        port = choose_port()
        super().__init__(DockerContainer(KAFKA_IMAGE), port)
        values = settings.KAFKA | {
            "controller.quorum.voters": f"1@localhost:{_CONTROLLER_PORT}",
            "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://localhost:{_CONTROLLER_PORT}",
            "advertised.listeners": f"PLAINTEXT://{self.host}:{port}",
        }
        # The image takes every setting from a variable of this form.
        for name, value in values.items():
            self._container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def answers(self) -> bool:
        return KafkaProbe(self.host, self.port).answers()


@contextmanager
def open_containers() -> Iterator[tuple[PostgresContainer, KafkaContainer]]:
    """Both containers, removed at the end.

    Raises:
        EnvironmentProblem: ``no_container_engine``.
    """
    check_engine()
    with ExitStack() as cleanup:
        postgres = PostgresContainer()
        cleanup.callback(postgres.remove)
        postgres.start()
        kafka = KafkaContainer()
        cleanup.callback(kafka.remove)
        kafka.start()
        yield postgres, kafka
