"""The apply process of a project: ``python -m cdc.daemon.apply_child --config PATH``.

Works with and without a daemon. Exit codes: 0 ended as asked, 1 retryable, 2 configuration,
3 the environment.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import structlog

from cdc.config import Config, load_config
from cdc.daemon.channel import ChildChannel, Command
from cdc.errors import CdcError, ConfigError, LakeError
from cdc.lakelock import hold_lake_lock
from cdc.logging import configure_logging
from cdc.runtime import resolve_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.apply import Applier, TableResult

log = structlog.get_logger(__name__)

_POLL_SECONDS: Final = 0.1
_REPORT_SECONDS: Final = 2.0
#: Jobs that still run so long after a stop was asked for are cancelled; commits are atomic.
_DRAIN_SECONDS: Final = 15.0


class StopFlag:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.asked_at = 0.0

    def install(self) -> None:
        """Take the signals; again after Spark has started, which takes SIGINT for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def set(self) -> None:
        """Ask for the stop."""
        if not self._event.is_set():
            self.asked_at = time.monotonic()
            self._event.set()

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, or wake up at a stop."""
        return self._event.wait(seconds)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.set()


class ApplyLoop:
    """Applies at each interval, and does what the daemon asks for.

    Args:
        config: The project.
        applier: Of the lake.
        spark: The process's session.
        channel: To the daemon.
        stop: Ends the loop.
    """

    def __init__(
        self,
        config: Config,
        applier: Applier,
        spark: SparkSession,
        channel: ChildChannel,
        stop: StopFlag,
    ) -> None:
        self._config = config
        self._applier = applier
        self._spark = spark
        self._channel = channel
        self._stop = stop
        self._reason: str | None = "the first pass has not ended"
        self._rebuilds: list[threading.Thread] = []
        self._waiting: list[Command] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """Run until the stop flag; raises what ends the process."""
        reporter = threading.Thread(target=self._report, name="report", daemon=True)
        reporter.start()
        interval = self._config.apply.interval.total_seconds()
        try:
            while not self._stop.is_set():
                due = time.monotonic() + interval
                if self._pass():
                    continue
                while not self._stop.is_set() and time.monotonic() < due and not self._waiting:
                    self._take_commands()
                    self._stop.wait(_POLL_SECONDS)
        finally:
            self._stop.set()
            self._channel.state("draining")
            for thread in self._rebuilds:
                thread.join()
            self._ended.set()

    # --- inside ---

    def _pass(self) -> bool:
        """One pass over all tables; whether the next one has something to do at once."""
        self._take_commands()
        asked, self._waiting = self._waiting, []
        self._channel.state("applying")
        try:
            results = self._applier.run_pass(self._config.sources, stopping=self._stop.is_set)
        except CdcError as error:
            if not _can_wait(error):
                raise
            log.warning("pass_failed", code=error.code, error=error.message)
            self._reason = error.message
            for command in asked:
                self._channel.failed(command, error)
            return False
        failed = [r for r in results if r.error is not None]
        for result in failed:
            if result.error is not None and result.error.code == "spark_gone":
                raise result.error
        self._reason = f"{failed[0].table}: {failed[0].error}" if failed else None
        self._channel.metrics(replicas=replica_metrics(results))
        self._channel.state("waiting", tables=len(results), failed=len(failed))
        for command in asked:
            self._channel.done(command, {"tables": len(results), "failed": len(failed)})
        return any(r.more and r.error is None for r in results)

    def _take_commands(self) -> None:
        for command in self._channel.commands():
            if command.verb == "rebuild":
                thread = threading.Thread(target=self._rebuild, args=(command,), name="rebuild")
                self._rebuilds = [t for t in self._rebuilds if t.is_alive()] + [thread]
                thread.start()
            elif command.verb == "apply_now":
                self._waiting.append(command)
            elif command.verb == "stop":
                self._stop.set()
                self._channel.done(command, {})
            else:
                self._channel.failed(
                    command, ConfigError("unknown_verb", f"apply does not know {command.verb!r}")
                )

    def _rebuild(self, command: Command) -> None:
        from spark_jobs.rebuild import rebuild_table, replica_name

        try:
            # As it is now: tables come and go without a restart.
            config = load_config(self._config.path)
            source, table = replica_name(config, str(command.args.get("table", "")))
            result = rebuild_table(
                self._applier,
                source,
                table,
                lambda progress: self._channel.progress(command, **progress),
            )
        except CdcError as error:
            log.error("rebuild_failed", code=error.code, error=error.message, table=error.table)
            self._channel.failed(command, error)
        except BaseException as problem:
            # Whoever asked waits for an answer, and the thread has nobody else to tell.
            log.error("rebuild_crashed", exc_info=problem)
            self._channel.failed(
                command,
                LakeError("rebuild_crashed", f"the rebuild ended by {type(problem).__name__}"),
            )
        else:
            self._channel.done(command, result)

    def _report(self) -> None:
        """Readiness goes on while a long merge runs; and a stop does not wait for ever."""
        cancelled = False
        while not self._ended.wait(_REPORT_SECONDS):
            self._channel.ready(self._reason is None, self._reason)
            if self._stop.is_set() and not cancelled:
                if time.monotonic() - self._stop.asked_at > _DRAIN_SECONDS:
                    cancelled = True
                    log.warning("jobs_cancelled", after_seconds=_DRAIN_SECONDS)
                    self._spark.sparkContext.cancelAllJobs()


def replica_metrics(results: list[TableResult]) -> dict[str, dict[str, Any]]:
    """Figures per replica, as the daemon shows them."""
    figures: dict[str, dict[str, Any]] = {}
    for result in results:
        held = result.position
        lag_bytes = result.frontier.lsn - held.lsn if held is not None else result.frontier.lsn
        lag_us = max(0, result.frontier_us - (result.commit_us or result.frontier_us))
        figures[result.table] = {
            "lag_bytes": float(max(0, lag_bytes)),
            "lag_seconds": lag_us / 1e6,
            "records": float(result.behind_records),
            "version": float(-1 if result.version is None else result.version),
            "failed": float(result.error is not None),
            "out_of_range_values": dict(result.out_of_range),
        }
    return figures


def _can_wait(error: CdcError) -> bool:
    """Whether the next interval may see it mended: a broker that is away, an open transaction."""
    from cdc.log.kafka_errors import is_retryable

    return is_retryable(error)


def run(config: Config, channel: ChildChannel, stop: StopFlag) -> None:
    """Hold the lake, start Spark and apply until the stop flag.

    Raises:
        CdcError: What ends the process.
    """
    from spark_jobs.apply import Applier
    from spark_jobs.log_state import LogAddress
    from spark_jobs.rebuild import settings_of
    from spark_jobs.session import build_session, jvm_pid

    bootstrap, security = resolve_log(config)
    with hold_lake_lock(config.lake.path) as lock:
        channel.state("starting")
        channel.ready(False, "Spark is starting")
        spark = build_session(config.spark.master, config.spark.driver_memory, config.spark.conf)
        stop.install()
        lock.record_jvm(jvm_pid(spark))
        address = LogAddress(bootstrap, security, config.log.topic_prefix)
        applier = Applier(spark, address, settings_of(config))
        try:
            log.info("apply_started", lake=config.lake.path, sources=sorted(config.sources))
            ApplyLoop(config, applier, spark, channel, stop).run()
        finally:
            applier.close()
            spark.stop()
    log.info("apply_stopped")


def main(arguments: list[str] | None = None) -> int:
    """Run the process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="cdc.daemon.apply_child")
    parser.add_argument("--config", required=True, type=Path)
    options = parser.parse_args(arguments)
    configure_logging("apply")
    channel = ChildChannel.from_env()
    stop = StopFlag()
    stop.install()
    try:
        run(load_config(options.config), channel, stop)
    except CdcError as error:
        if stop.is_set():
            log.warning("stopped_by_error", code=error.code, error=error.message)
            return 0
        log.error("apply_ended", code=error.code, error=error.message, remedy=error.remedy)
        channel.error(error)
        return error.exit_code
    except Exception as problem:
        log.error("apply_crashed", exc_info=problem)
        return 1
    finally:
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
