"""The capture process of one source: ``python -m cdc.daemon.capture_child``.

Exit codes: 0 ended as asked, 1 retryable, 2 refused (an operator has to act), 3 the environment,
4 the source is stopped and Errored is recorded in control.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from cdc.config import Config, load_config
from cdc.daemon.channel import ChildChannel
from cdc.errors import CdcError, ConfigError, HistoryGap, ProtocolViolation, SourceStopped
from cdc.logging import configure_logging
from cdc.runtime import resolve_log, source_conninfo

if TYPE_CHECKING:
    from connectors.postgres.capture_settings import CaptureSettings

log = structlog.get_logger(__name__)

OK, RETRYABLE, REFUSED, SOURCE_STOPPED = 0, 1, 2, 4


def capture_settings(config: Config, name: str) -> CaptureSettings:
    """Settings of a source's capture, with addresses and secrets resolved.

    Raises:
        ConfigError: ``unknown_source``, ``secret_missing``.
        EnvironmentProblem: ``local_stack_missing``.
    """
    from connectors.postgres.capture_settings import CaptureSettings

    source = config.sources.get(name)
    if source is None:
        raise ConfigError(
            "unknown_source",
            f"cdc.yaml has no source {name!r}",
            remedy="one of " + ", ".join(sorted(config.sources)),
        )
    bootstrap_servers, log_options = resolve_log(config)
    return CaptureSettings(
        project=config.project,
        source=name,
        database=source.database,
        conninfo=source_conninfo(config, source),
        bootstrap_servers=bootstrap_servers,
        log_options=log_options,
        topic_prefix=config.log.topic_prefix,
        partitions=config.log.partitions,
        replication_factor=config.log.replication_factor,
        history_ms=round(config.log.history.total_seconds() * 1000),
        slot=source.slot_name,
        publication=source.publication_name,
        manage_publication=source.publication.manage,
        tables=source.table_ids,
        patterns=source.patterns,
        keys=source.keys,
        schema_policies=source.schema_policies,
        workers=source.snapshot.workers,
        rows_per_second=source.snapshot.rows_per_second,
        version=_version(),
    )


def exit_code(error: CdcError) -> int:
    """What the daemon is told by the exit code; see the head of this file."""
    if isinstance(error, SourceStopped):
        return SOURCE_STOPPED
    # Trying again mends no gap, nor bytes that are not the protocol: an operator has to decide.
    return REFUSED if isinstance(error, HistoryGap | ProtocolViolation) else error.exit_code


def main(argv: list[str] | None = None) -> int:
    """Run capture until SIGTERM or SIGINT; returns the exit code."""
    from connectors.postgres.capture import Capture
    from connectors.postgres.stopping import StopRequest
    from snapshots.copier import ChunkCopier

    parser = argparse.ArgumentParser(prog="capture_child")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--source", required=True)
    arguments = parser.parse_args(argv)
    channel = ChildChannel.from_env()
    configure_logging(f"capture:{arguments.source}")
    stop = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.request())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Every batch makes thousands of lists without any cycle among them.
    gc.set_threshold(100_000)
    try:
        settings = capture_settings(load_config(arguments.config), arguments.source)
        Capture(settings, ChunkCopier, channel, stop).run()
        log.info("capture has ended as asked")
        return OK
    except CdcError as error:
        log.error("capture ends", **error.to_json())
        channel.error(error)
        return exit_code(error)
    except Exception as error:
        log.error("capture ends", exc_info=error)
        channel.error(CdcError("internal_error", f"capture failed: {type(error).__name__}"))
        return RETRYABLE
    finally:
        channel.close()


def _version() -> str:
    try:
        return metadata.version("cdc")
    except metadata.PackageNotFoundError:
        return "0"


if __name__ == "__main__":
    sys.exit(main())
