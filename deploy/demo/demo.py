"""``cdc demo``: what is made for it, and that all of it is gone afterwards."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

from cdc.errors import CdcError, EnvironmentProblem
from deploy.demo.daemon import Daemon
from deploy.demo.project import Project, create_project
from deploy.demo.show import Show
from deploy.demo.stages import Stages


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Args:
        rows: Flights in all; None: every one.
        seconds: Longest time that changes are played for.
        keep: Leave everything running and on disk.
        folder: Where; None: a temporary folder.
    """

    rows: int | None = None
    seconds: float = 35.0
    keep: bool = False
    folder: Path | None = None


def run(options: Options, show: Show) -> dict[str, Any]:
    """Run the demo; its figures.

    Leaves nothing running and nothing on disk, unless it was asked to keep them and nobody
    interrupted it.

    Raises:
        CdcError: ``demo_differs`` when a table is not what Postgres holds; or what failed.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP.
    """
    with _ends_interrupt():
        project = create_project(options.folder, outlives=options.keep)
        daemon = Daemon(project)
        keep = False
        try:
            show.headline("cdc demo: the flights that left New York in 2013, as they happened")
            show.say(f"in {project.folder}{'' if options.keep else ', removed at the end'}")
            figures = Stages(project, daemon, show, options.rows, options.seconds).run()
            keep = options.keep
        except CdcError:
            keep = options.keep
            _tell_troubles(daemon, show, keep)
            raise
        except psycopg.Error as error:
            keep = options.keep
            _tell_troubles(daemon, show, keep)
            # Its text could hold values of a row.
            raise EnvironmentProblem(
                "demo_postgres", f"the demo's Postgres fails: {type(error).__name__}"
            ) from None
        except KeyboardInterrupt:
            show.say("")
            show.say("interrupted: everything is removed")
            raise
        finally:
            if keep:
                _tell_how_to_go_on(project, show)
            else:
                _remove(project, daemon, show)
        return {"folder": str(project.folder) if keep else None, **figures}


def _remove(project: Project, daemon: Daemon, show: Show) -> None:
    def hurry(_number: int, _frame: FrameType | None) -> None:
        daemon.kill()

    # Another Ctrl-C ends the daemon at once, and what has to be removed is removed all the same.
    before = [(number, signal.signal(number, hurry)) for number in _handled()]
    try:
        show.progress("stopping the daemon")
        daemon.stop()
        show.progress("removing everything")
        project.remove()
        show.done()
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _tell_troubles(daemon: Daemon, show: Show, keep: bool) -> None:
    lines = daemon.tail()
    if not keep:
        lines.append("cdc demo --keep would keep .cdc/logs")
    show.trouble(lines)


def _tell_how_to_go_on(project: Project, show: Show) -> None:
    beside = Path(sys.executable).parent / "cdc"
    cdc = "cdc" if shutil.which("cdc") or not beside.exists() else str(beside)
    show.say("")
    show.say("The daemon goes on. To go on yourself:", style="bold")
    show.say(f"  cd {project.folder}     # cdc.yaml, lake/ with the Delta tables, .cdc/logs")
    show.say(f"  {cdc} status")
    example = "select * from nyc.public.airlines"
    show.say(f'  {cdc} query "{example}"')
    show.say(f"  {cdc} stop              # the daemon; cdc start resumes where it stopped")
    show.say(f"  {cdc} destroy           # everything of it")


@contextmanager
def _ends_interrupt() -> Iterator[None]:
    """Within it, whatever asks us to end is a KeyboardInterrupt."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, interrupt)) for number in _handled()]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _handled() -> list[signal.Signals]:
    # nohup ignores SIGHUP, and so do we then.
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
