"""What processes took of the machine: CPU seconds and memory."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import psutil


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process and of all that it ever started, as far as it waited for them."""
    process = psutil.Process(pid)
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            total += sum(member.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def children_seconds() -> float:
    """CPU seconds of children of this process that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_bytes(pid: int) -> int:
    """Most memory that a process ever had resident; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    # A process that has just ended has no memory any more.
    return int(found[1]) * 1024 if found else 0
