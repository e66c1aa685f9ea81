"""What tests of the copier look at: records, processes and sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil
import psycopg

from cdc.load import LoadTask
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader


def records_of(bootstrap: str, task: LoadTask) -> Iterator[Any]:
    """All committed LogRecords of a load's topic; those of a load have an image."""
    ends = LogAdmin(bootstrap).offsets(task.topic)
    with LogReader(bootstrap) as reader:
        for partition, offsets in ends.items():
            yield from reader.records(task.topic, partition, 0, offsets.last_stable)


def worker_processes(parent: int | None = None) -> list[psutil.Process]:
    """Snapshot workers below a process, this one by default."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if "snapshots.worker" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def sessions(conninfo: Mapping[str, Any], query: str = "%") -> list[int]:
    """Server processes of workers in a database whose newest statement is like ``query``."""
    with psycopg.connect(**conninfo) as connection:
        found = connection.execute(
            "select pid from pg_stat_activity where application_name ~ '^cdc .*snapshot'"
            " and datname = current_database() and query like %s",
            (query,),
        ).fetchall()
    return [pid for (pid,) in found]


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
