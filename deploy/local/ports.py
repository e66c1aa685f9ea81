"""Free loopback ports that stay ours while a server is down."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from pathlib import Path

from cdc.errors import EnvironmentProblem

_LOWEST = 15000
_TRIES = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose_port(avoid: Collection[int] = ()) -> int:
    """A free port below the kernel's ephemeral range, at random.

    A port of the ephemeral range could be taken by any outgoing connection while the server is
    down for a moment; a client that keeps reconnecting can even connect to itself on it.

    Raises:
        EnvironmentProblem: ``no_free_port``.
    """
    highest = _ephemeral_start() - 1
    if highest <= _LOWEST:
        highest = 65535
    for _ in range(_TRIES):
        port = random.randint(_LOWEST, highest)  # noqa: S311
        if port not in avoid and is_free(port):
            return port
    raise EnvironmentProblem(
        "no_free_port",
        f"no free port found on 127.0.0.1 between {_LOWEST} and {highest}",
        remedy="stop other servers on this machine",
    )


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32768
