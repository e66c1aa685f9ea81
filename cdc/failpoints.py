"""Points where a test may kill the process, at the borders of what is durable.

``CDC_FAILPOINT=name`` or ``name:count`` in the environment: the count-th time (1 by default)
that the process passes the point, it ends as by kill -9. Without it, points do nothing.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "CDC_FAILPOINT"

_passed: dict[str, int] = {}


def failpoint(name: str) -> None:
    """End this process here if the environment asks for it."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    chosen, _, count = wanted.partition(":")
    if chosen != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
