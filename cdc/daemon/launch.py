"""Becomes a child of the daemon: dies with it, whatever kills it. Standard library only.

``python launch.py PARENT_PID PROGRAM ARG…``: asks the kernel for SIGKILL when the parent ends
(PR_SET_PDEATHSIG, kept across exec), then becomes PROGRAM. A program of its own, because code
between fork and exec in a process with threads can hang.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Tie this process to its parent and become ``argv[1:]``."""
    parent = int(argv[0])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before prctl: then nobody will tell us.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(argv[1], argv[1:])  # noqa: S606 - an argv list, no shell wanted


if __name__ == "__main__":
    main(sys.argv[1:])
