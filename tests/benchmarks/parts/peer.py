"""The peer, measured by its own harness: scripts that start its servers and time its snapshot.

The harness is a folder with ``setup.sh``, ``run_snapshot.sh`` and ``stop.sh``. Its README says
what it needs; the jars of the peer come by Maven, or from ``lib/all`` of the folder that WORK
names.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.jars import jar_folder
from deploy.local.binaries import find_binaries
from deploy.local.ports import choose_port
from deploy.local.process import server_account
from tests.benchmarks.parts import firenibble
from tests.benchmarks.parts.runs import Run
from tests.benchmarks.parts.servers import Servers

_PORTS = ("PG_PORT", "KAFKA_PORT", "KAFKA_CTRL_PORT", "REST_PORT")
_FIELD = re.compile(r"(\w+)=(\S+)")


def parse_runs(text: str) -> list[Run]:
    """The runs of which ``run_snapshot.sh`` tells, from the first record to the last.

    Raises:
        ValueError: A run did not end; the line is in the message.
    """
    runs = []
    for line in text.splitlines():
        if not line.startswith("snapshot "):
            continue
        found = dict(_FIELD.findall(line))
        if "span_s" not in found:
            raise ValueError(f"the peer's snapshot was not measured: {line}")
        runs.append(
            Run(
                rows=int(found["n"]),
                seconds=float(found["span_s"]),
                cpu=float(found["cpu_span_s"]),
                broker_cpu=float(found["broker_cpu_s"]),
                peak_bytes=int(found["rss_peak_mb"]) * 2**20,
                startup_seconds=float(found["startup_to_first_event_s"]),
                startup_cpu=float(found["cpu_first_s"]),
            )
        )
    return runs


@dataclass(frozen=True, slots=True)
class Peer:
    """A harness whose servers run.

    Args:
        harness: Folder of the scripts.
        environment: Of the scripts.
        servers: The Postgres and the broker that it started; ours are measured on them, too.
    """

    harness: Path
    environment: Mapping[str, str]
    servers: Servers

    def snapshot(self, rows: int) -> Run:
        """One snapshot, by one thread, of the rows that the table holds."""
        before = self.servers.postgres_seconds()
        environment = {**self.environment, "KEEP": "1"}
        (run,) = parse_runs(
            _script(self.harness, "run_snapshot.sh", environment, "1", "1", str(rows))
        )
        used = self.servers.postgres_seconds() - before
        sent = self.servers.topic_bytes(f"dbz.public.{firenibble.NAME}")
        return dataclasses.replace(run, postgres_cpu=used, sent_bytes=sent)


@contextmanager
def running_peer(harness: Path) -> Iterator[Peer]:
    """Set the harness up, with servers and data of its own, which are gone at the end.

    WORK may name a folder in whose ``lib`` its jars are kept.
    """
    work = Path(tempfile.mkdtemp(prefix="cdc-bench-"))
    # Postgres runs as another user.
    work.chmod(0o755)
    if kept := os.environ.get("WORK"):
        jars = Path(kept).resolve() / "lib"
        jars.mkdir(parents=True, exist_ok=True)
        (work / "lib").symlink_to(jars)
    ports: list[int] = []
    for _ in _PORTS:
        ports.append(choose_port(avoid=ports))
    account = server_account()
    environment = {
        # With which its own figures were taken.
        "EXTRA_JVM": "-XX:+UseParallelGC",
        **({"PG_OS_USER": account.name} if account else {}),
        **os.environ,
        "WORK": str(work),
        "PG_BIN": str(find_binaries().folder),
        "KAFKA_LIB": str(jar_folder("broker")),
        **dict(zip(_PORTS, map(str, ports), strict=True)),
    }
    broker = None
    try:
        _script(harness, "setup.sh", environment)
        postmaster, broker = (_pid(work / name) for name in ("pg/postmaster.pid", "run/kafka.pid"))
        conninfo = {"host": "127.0.0.1", "port": ports[0], "user": "bench", "dbname": "bench"}
        bootstrap = f"127.0.0.1:{ports[1]}"
        servers = Servers(conninfo, bootstrap, postmaster, broker, work / "kafka")
        yield Peer(harness, environment, servers)
    finally:
        _script(harness, "stop.sh", environment)
        if broker is not None and psutil.pid_exists(broker):
            # It is told to stop, but not waited for.
            psutil.Process(broker).wait(60)
        shutil.rmtree(work)


def _script(harness: Path, name: str, environment: Mapping[str, str], *arguments: str) -> str:
    # The servers that a script starts keep what they were given as output: no pipe, whose end
    # would never come.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [harness / name, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        said = output.read()
    if done.returncode != 0:
        raise RuntimeError(f"{name} of the peer's harness ended with {done.returncode}:\n{said}")
    return said


def _pid(path: Path) -> int:
    return int(path.read_text().split()[0])
