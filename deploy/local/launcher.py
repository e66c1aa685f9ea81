"""Becomes another program, as another user and bound to its parent's life.

Run as a script of its own (``python -I -S launcher.py SPEC ARGV…``), never imported: between
fork and exec of a process with threads only C code is safe, so the steps happen here, in a
fresh single-threaded interpreter whose pid the program keeps.
"""

import ctypes
import json
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Drop privileges, ask for a signal at the parent's death, and exec."""
    spec = json.loads(sys.argv[1])
    argv = sys.argv[2:]
    if spec["uid"] is not None:
        os.setgroups([])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])
    os.umask(0o077)
    if spec["die_signal"] is not None:
        # After setuid: a change of credentials clears it.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, spec["die_signal"], 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != spec["parent"]:
            sys.exit("the parent has already gone")
    try:
        os.execve(argv[0], argv, spec["env"])  # noqa: S606
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


main()
