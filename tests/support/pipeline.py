"""A pipeline of real processes over the test stack: capture, apply, the daemon, the CLI."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from cdc.config import load_config
from cdc.errors import CdcError
from cdc.jvm import SHORT_LIVED_JVM
from cdc.position import parse_lsn
from cdc.query.run import run_query
from cdc.states import REMOVED
from cdc.status import collect_status
from tests.support.readers import Readers

SOURCE = "shop"
QUICK_SPARK = f'spark.driver.extraJavaOptions: "{" ".join(SHORT_LIVED_JVM)}"'


class Pipeline:
    """One project with one source, in a folder of its own.

    Args:
        folder: For cdc.yaml, the lake and the logs.
        bootstrap: Kafka.
        conninfo: libpq keywords of the source database.
        tables: TableIds to capture.
        prefix: Of the topics, unique on a shared broker.
        snapshot: The source's ``snapshot`` in cdc.yaml.
    """

    def __init__(
        self,
        folder,
        bootstrap,
        conninfo,
        tables,
        *,
        prefix,
        partitions=1,
        interval="2s",
        snapshot="{}",
    ):
        self.folder = Path(folder)
        self.source = SOURCE
        self.lake = self.folder / "lake"
        self.bootstrap = bootstrap
        self.conninfo = dict(conninfo)
        self.prefix = prefix
        self.readers = Readers(bootstrap, prefix)
        self.config_path = self.folder / "cdc.yaml"
        self._children = {}
        self._log_sizes = {}
        password = self.folder / "password"
        password.write_text(self.conninfo.get("password", ""))
        password.chmod(0o600)
        self.config_path.write_text(
            f"""project: test
log: {{bootstrap_servers: "{bootstrap}", topic_prefix: "{prefix}", partitions: {partitions}}}
lake: {{path: ./lake}}
spark: {{master: "local[2]", driver_memory: 1g, conf: {{{QUICK_SPARK}}}}}
apply: {{interval: {interval}}}
sources:
  {SOURCE}:
    kind: postgres
    host: {self.conninfo["host"]}
    port: {self.conninfo["port"]}
    database: {self.conninfo["dbname"]}
    user: {self.conninfo["user"]}
    password: {{file: ./password}}
    snapshot: {snapshot}
    tables: [{", ".join(str(t) for t in tables)}]
"""
        )

    # --- processes ---

    def start(self, name, *arguments, env=None):
        """Start ``python -m …``; its output goes to a file of its own."""
        log = (self.folder / f"{name}.log").open("ab")
        self._log_sizes[name] = log.tell()
        with log:
            self._children[name] = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={**os.environ, **(env or {})},
            )
        return self._children[name]

    def start_capture(self, env=None, module="cdc.daemon.capture_child"):
        return self.start(
            "capture",
            "-m",
            module,
            "--config",
            str(self.config_path),
            "--source",
            SOURCE,
            env=env,
        )

    def capture_pid(self):
        """Of the running capture process."""
        return self._children["capture"].pid

    def start_apply(self, env=None):
        module = ("-m", "cdc.daemon.apply_child")
        return self.start("apply", *module, "--config", str(self.config_path), env=env)

    def start_daemon(self, env=None):
        return self.start("daemon", "-m", "cdc.cli.main", "-c", str(self.config_path), "start")

    def cli(self, *arguments, check=True, timeout=120):
        """Run ``cdc …`` and return the completed process."""
        done = subprocess.run(
            [sys.executable, "-m", "cdc.cli.main", "-c", str(self.config_path), *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=timeout,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def query(self, sql):
        """Rows of what ``cdc query`` answers, without a process for it."""
        return [list(row) for row in run_query(load_config(self.config_path), sql).rows]

    def kill9(self, name):
        child = self._children.pop(name)
        child.kill()
        child.wait(10)

    def stop(self, name, timeout=40):
        """SIGTERM, once it has come so far as to log; returns the exit code."""
        size = self._log_sizes[name]
        self.wait_until(
            lambda: (self.folder / f"{name}.log").stat().st_size > size, 60, f"{name} to start"
        )
        child = self._children.pop(name)
        child.send_signal(signal.SIGTERM)
        return child.wait(timeout)

    def wait_exit(self, name, timeout=60):
        """Wait until a child ends by itself; returns its exit code."""
        return self._children.pop(name).wait(timeout)

    def running(self, name):
        return name in self._children and self._children[name].poll() is None

    def output(self, name):
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"{name}.log").read_text()
        return ""

    def close(self):
        for name in list(self._children):
            self.kill9(name)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # --- questions ---

    def frontier(self):
        """The newest frontier, or None."""
        with self.readers.open() as reader:
            return reader.frontier(SOURCE)

    def control(self):
        """The source's control state."""
        with self.readers.open() as reader:
            return reader.control_state(SOURCE)

    def source_lsn(self):
        """Where the source's WAL ends now."""
        with psycopg.connect(**self.conninfo, autocommit=True) as connection:
            row = connection.execute("select pg_current_wal_lsn()").fetchone()
            assert row is not None
            return parse_lsn(row[0])

    def wait_captured(self, timeout=60, watch="capture"):
        """Wait until all tables are Ready and the log has what the source holds now."""
        target = self.source_lsn()

        def captured():
            with self.readers.open() as reader:
                view = reader.frontier(SOURCE)
                if view is None or view.record.end_lsn < target:
                    return False
                tables = reader.control_state(SOURCE, view.record.control_end).tables
                here = [r for r in tables.values() if r.state != REMOVED]
                return bool(here) and all(r.ready_from is not None for r in here)

        self.wait_until(
            captured,
            timeout,
            f"the frontier to reach {target:X}",
            watch=watch,
        )

    def status(self):
        """What ``cdc status --json`` says."""
        return json.loads(self.cli("status", "--json").stdout)["result"]

    def wait_applied(self, tables, timeout=400, revive=lambda: None):
        """Wait until every replica has all that the log holds now."""
        wanted = {f"{self.source}.{table}" for table in tables}

        def applied():
            revive()
            replicas = collect_status(load_config(self.config_path))["replicas"]
            return all(
                name in replicas and replicas[name]["behind_records"] == 0 for name in wanted
            )

        self.wait_until(applied, timeout, "apply to catch up", every=1)

    def wait_until(self, condition, timeout, what, watch=None, every=0.1):
        deadline = time.monotonic() + timeout
        with self.readers.waiting():
            while time.monotonic() < deadline:
                with contextlib.suppress(CdcError, psycopg.OperationalError):
                    if condition():
                        return
                if watch is not None and not self.running(watch):
                    raise AssertionError(f"{watch} ended: {self.output(watch)[-3000:]}")
                time.sleep(every)
        tail = "".join(f"\n--- {n}\n{self.output(n)[-3000:]}" for n in self._children)
        raise AssertionError(f"waited {timeout} s for {what}{tail}")
