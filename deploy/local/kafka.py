"""A Kafka broker of our own: KRaft, broker and controller in one JVM."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import structlog

from cdc.errors import EnvironmentProblem
from cdc.jvm import SHORT_LIVED_JVM
from deploy.jars import jar_folder
from deploy.local.java import find_java
from deploy.local.ports import choose_port, is_free
from deploy.local.process import ServerProcess, size, tail
from deploy.local.ready import KafkaProbe
from deploy.local.server import LocalServer
from deploy.local.settings import KAFKA
from deploy.local.state import KafkaState, read_json, write_json

log = structlog.get_logger(__name__)

_HOST = "127.0.0.1"
_LOGGING = """\
rootLogger.level = WARN
rootLogger.appenderRef.file.ref = file
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = INFO
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log_path}
appender.file.filePattern = {log_path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


class KafkaBroker(LocalServer[KafkaState]):
    """One broker and its log folder.

    Args:
        home: Folder of this broker: data/, server.properties, server.json, logs.
        die_with_parent: End the broker when this process ends (tests); else it outlives us.
        heap_mb: Java heap in MiB.
        quick_start: Start with half of the processor time and serve more slowly (tests).
    """

    kind = "kafka"
    title = "Kafka broker"

    def __init__(
        self,
        home: Path,
        *,
        die_with_parent: bool = False,
        heap_mb: int = 512,
        quick_start: bool = False,
    ) -> None:
        self._properties = home / "server.properties"
        super().__init__(home, self._properties, die_with_parent=die_with_parent)
        self.console_path = home / "console.log"
        self._heap_mb = heap_mb
        self._quick_start = quick_start

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"{_HOST}:{self._record()['port']}"

    def start(self, timeout: float = 120) -> KafkaState:
        """Format the log folder if there is none, start the broker, wait until it answers.

        Does nothing but wait when it already runs.

        Raises:
            EnvironmentProblem: ``kafka_start_failed``, ``kafka_not_ready``, ``java_missing``, ….
        """
        if self.running():
            self.wait_ready(timeout)
            return self.state()
        java = find_java()
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o700)
        (self.home / "log4j2.properties").write_text(_LOGGING.format(log_path=self.log_path))
        record = read_json(self._record_path) or {}
        if record.get("cluster_id") is None or not (self.data_dir / "meta.properties").exists():
            record = self._format(java)
        deadline = time.monotonic() + timeout
        while True:
            ports = [record.get("port"), record.get("controller_port")]
            for i, port in enumerate(ports):
                if port is None or not is_free(port):
                    ports[i] = choose_port(avoid=[p for p in ports if p is not None])
                    if port is not None:
                        log.warning("kafka_port_taken", port=port, new_port=ports[i])
            record |= {"v": 1, "port": ports[0], "controller_port": ports[1]}
            self._write_properties(self.data_dir, record)
            self._log_start = size(self.log_path)
            self._process = self._spawn(java, "kafka.Kafka", [str(self._properties)])
            record |= {"pid": self._process.pid, "started": self._process.started}
            write_json(self._record_path, record)
            try:
                self.wait_ready(max(1.0, deadline - time.monotonic()))
                return self.state()
            except EnvironmentProblem:
                # Another took a port between our look and the broker's bind.
                retry = tail(self.log_path, ("Address already in use",), start=self._log_start)
                if self.running() or not retry or time.monotonic() >= deadline:
                    raise

    def wait_ready(self, timeout: float = 90) -> None:
        """Return when the broker answers a metadata request and is a member of its cluster.

        Raises:
            EnvironmentProblem: ``kafka_start_failed`` (the broker ended), ``kafka_not_ready``
                (no answer within ``timeout`` seconds).
        """
        deadline = time.monotonic() + timeout
        probe = KafkaProbe(_HOST, self._record()["port"])
        while True:
            if not self.running():
                words = ("ERROR", "FATAL", "Exception")
                said = tail(self.log_path, words, start=self._log_start)
                said = said or tail(self.console_path, ("Error", "Exception", "rror:"))
                raise EnvironmentProblem(
                    "kafka_start_failed",
                    f"the Kafka broker ended while starting: {said or 'no message'}",
                    remedy=f"read {self.log_path} and {self.console_path}",
                )
            if probe.answers():
                return
            if time.monotonic() >= deadline:
                raise EnvironmentProblem(
                    "kafka_not_ready",
                    f"the Kafka broker did not answer within {timeout:.0f} s",
                    remedy=f"read {self.log_path}",
                )
            time.sleep(0.05)

    def stop(self, timeout: float = 30) -> None:
        """End the broker cleanly; kill it after ``timeout`` seconds."""
        process = self._find()
        if process is not None and not process.stop(signal.SIGTERM, timeout):
            log.warning("kafka_stop_forced", timeout=timeout)
            process.kill()
        self._forget()

    def state(self) -> KafkaState:
        """Address and process.

        Raises:
            EnvironmentProblem: ``kafka_not_created``: it was never started.
        """
        record = self._record()
        process = self._find()
        return KafkaState(
            bootstrap_servers=f"{_HOST}:{record['port']}",
            port=record["port"],
            controller_port=record["controller_port"],
            cluster_id=record["cluster_id"],
            home=str(self.home),
            pid=process.pid if process else None,
            started=process.started if process else None,
        )

    def _format(self, java: Path) -> dict[str, Any]:
        new = self.home / "data.new"
        for folder in (self.data_dir, new):
            shutil.rmtree(folder, ignore_errors=True)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Kafka's own ids never begin with a dash, which its tools take for an option.
        cluster_id = cluster_id.replace("-", "_")
        self._write_properties(new, {"port": 9092, "controller_port": 9093})
        process = self._spawn(
            java,
            "kafka.tools.StorageTool",
            ["format", "-t", cluster_id, "-c", str(self._properties)],
            die=True,
        )
        ended = process.wait_gone(60)
        if not ended:
            process.kill()
        if not ended or not (new / "meta.properties").exists():
            said = tail(self.console_path, ("rror", "xception"))
            raise EnvironmentProblem(
                "kafka_format_failed",
                f"the broker's log folder could not be formatted: {said or 'no message'}",
                remedy=f"read {self.console_path}",
            )
        record = {"v": 1, "cluster_id": cluster_id}
        write_json(self._record_path, record)
        new.rename(self.data_dir)
        return record

    def _write_properties(self, data_dir: Path, record: dict[str, Any]) -> None:
        port, controller_port = record["port"], record["controller_port"]
        listener = f"PLAINTEXT://{_HOST}:{port}"
        values = KAFKA | {
            "controller.quorum.voters": f"1@{_HOST}:{controller_port}",
            "listeners": f"{listener},CONTROLLER://{_HOST}:{controller_port}",
            "advertised.listeners": listener,
            # A properties file takes a backslash for an escape.
            "log.dirs": str(data_dir).replace("\\", "\\\\"),
        }
        lines = [f"{name}={value}\n" for name, value in values.items()]
        self._properties.write_text("# Written at every start.\n" + "".join(lines))

    def _spawn(
        self, java: Path, main_class: str, arguments: list[str], *, die: bool = False
    ) -> ServerProcess:
        argv = [
            str(java),
            f"-Xmx{self._heap_mb}m",
            # No optimising compiler, no collector threads.
            *(SHORT_LIVED_JVM if self._quick_start or die else ()),
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}",
            "-cp",
            f"{jar_folder('broker')}/*",
            main_class,
            *arguments,
        ]
        return ServerProcess.spawn(
            argv,
            log_path=self.console_path,
            cwd=self.home,
            env={
                name: os.environ[name]
                for name in ("PATH", "JAVA_HOME", "LANG", "TMPDIR")
                if name in os.environ
            },
            die_signal=signal.SIGKILL if die or self._die_with_parent else None,
        )
