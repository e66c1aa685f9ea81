"""Small children for the supervisor, in place of capture and apply."""

from __future__ import annotations

import sys
from pathlib import Path

from cdc.daemon.child import ChildSpec

_COMMON = """
import os, signal, sys, time, pathlib
from cdc.daemon.channel import ChildChannel
from cdc.errors import SourceRefused, LakeError
here = pathlib.Path(sys.argv[1])
channel = ChildChannel.from_env()
with (here / "starts").open("a") as file:
    file.write(f"{os.getpid()} {time.monotonic()}\\n")
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
"""

#: Says that it is ready, answers commands, drains on SIGTERM.
WELL = (
    _COMMON
    + """
channel.state("streaming")
channel.ready(True)
channel.metrics(lag_bytes=12, records=34, tables={"public.t": 5})
while not ended:
    for command in channel.commands():
        if command.verb == "rebuild" and command.args.get("die"):
            os._exit(1)
        if command.verb == "rebuild":
            channel.progress(command, rows=1)
            channel.done(command, {"rows": 2, **command.args})
    channel.ready(True)
    time.sleep(0.02)
(here / "drained").touch()
channel.close()
"""
)
#: Ends at once with the code in its second argument.
ENDS = _COMMON + "sys.exit(int(sys.argv[2]))\n"
#: Refuses its configuration and says why.
REFUSES = (
    _COMMON
    + """
channel.error(SourceRefused("no_key", "the table has no primary key", table="public.t",
                            remedy="ALTER TABLE public.t ADD PRIMARY KEY (id);"))
channel.close()
sys.exit(2)
"""
)
#: Is refused after it was well.
REFUSES_LATER = (
    _COMMON
    + """
channel.ready(True)
channel.error(SourceRefused("slot_missing", "the slot is gone"))
channel.close()
sys.exit(2)
"""
)
#: Does not hear SIGTERM, and has a child of its own.
STUBBORN = (
    _COMMON
    + """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(here / "grandchild").write_text(str(child.pid))
channel.state("streaming")
time.sleep(600)
"""
)


def spec(name: str, code: str, folder: Path, *arguments: str) -> ChildSpec:
    """A child that runs ``code`` with a folder of its own."""
    own = folder / name.replace(":", ".")
    own.mkdir(exist_ok=True)
    source = name.partition(":")[2] or None
    return ChildSpec(name, (sys.executable, "-c", code, str(own), *arguments), source=source)


def starts(folder: Path, name: str) -> list[tuple[int, float]]:
    """(pid, monotonic time) of each start of a child."""
    path = folder / name.replace(":", ".") / "starts"
    if not path.exists():
        return []
    pairs = [line.split() for line in path.read_text().splitlines()]
    return [(int(pid), float(at)) for pid, at in pairs]
