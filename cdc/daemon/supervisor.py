"""The children of one project as a whole: commands to them, readiness, and the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from cdc.daemon.backoff import BackOffPolicy
from cdc.daemon.child import REFUSED, Child, ChildSpec, ChildView
from cdc.daemon.commands import CommandLog, CommandRecord
from cdc.daemon.logfiles import LogFile
from cdc.errors import CdcError, ConfigError

log = structlog.get_logger(__name__)

#: How long a drain may take; formats.md.
DRAIN_SECONDS = 30.0
#: A child that has not said that it is ready for this long is not.
READY_FOR_SECONDS = 30.0
APPLY = "apply"
#: Which child answers a verb; None: capture of the source that the arguments name.
_VERBS = {
    "rebuild": APPLY,
    "apply_now": APPLY,
    **dict.fromkeys(("snapshot", "pause", "resume", "cancel", "tables")),
}


class Supervisor:
    """Runs children until drained. All methods belong to the event loop's thread.

    Args:
        specs: The children.
        environment: Their environment.
        folder: Their working folder.
        logs: Folder of their log files.
        policy: Waits between starts.
        keep_raw: Keep what they print as it is (``--dev``).
        notify: Told when a child goes down for good or is started again; for people.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        environment: Mapping[str, str],
        folder: Path,
        logs: Path,
        policy: BackOffPolicy | None = None,
        keep_raw: bool = False,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.started = time.time()
        self.commands = CommandLog()
        self._notify = notify
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._phases: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._log_files = [LogFile(logs, spec.name, keep_raw=keep_raw) for spec in specs]
        self._children = {
            spec.name: Child(
                spec,
                environment=dict(environment),
                folder=folder,
                log_file=log_file,
                policy=policy or BackOffPolicy(),
                on_answer=self.commands.answered,
                on_change=self._on_change,
            )
            for spec, log_file in zip(specs, self._log_files, strict=True)
        }

    @property
    def views(self) -> list[ChildView]:
        """What is known of each child."""
        return [child.view for child in self._children.values()]

    @property
    def draining(self) -> bool:
        """Whether the end has begun."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Begin to drain; ``run`` returns when all have ended."""
        self._stop.set()

    async def run(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Run all children until ``stop``, or until every capture child was refused at its start.

        Raises:
            ConfigError: Every capture child was refused; the first one's error.
        """
        tasks = [
            asyncio.create_task(child.supervise(), name=child.spec.name)
            for child in self._children.values()
        ]
        stopping = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set() and self._refusal() is None:
                self._changed.clear()
                changing = asyncio.create_task(self._changed.wait())
                await asyncio.wait({stopping, changing}, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
            refusal = self._refusal()
            self._stop.set()
        finally:
            stopping.cancel()
            for child in self._children.values():
                child.drain(drain_seconds)
            await asyncio.gather(*tasks)
            for log_file in self._log_files:
                log_file.close()
        if refusal is not None:
            raise refusal

    async def settled(self, seconds: float) -> None:
        """Wait until every capture child has said what it does, or is down for good."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.draining:
            if all(
                view.state != "starting" or view.phase == "down"
                for view in self.views
                if view.source is not None
            ):
                return
            await asyncio.sleep(0.05)

    def unready(self) -> list[str]:
        """Why the whole is not ready; empty when it is."""
        reasons = []
        now = time.monotonic()
        if self.draining:
            reasons.append("draining")
        for view in self.views:
            if view.phase != "running":
                reasons.append(f"{view.name}: {view.phase}")
            elif not view.ready:
                reasons.append(f"{view.name}: {view.ready_reason or view.state}")
            elif now - view.ready_at > READY_FOR_SECONDS:
                reasons.append(f"{view.name}: silent for {now - view.ready_at:.0f} s")
        return reasons

    def submit(self, command_id: str, verb: str, args: dict[str, Any]) -> CommandRecord:
        """Do a command, or find it when it was asked for before.

        Raises:
            ConfigError: ``unknown_verb``, ``command_id_taken``.
        """
        if verb != "stop" and verb not in _VERBS:
            known = ", ".join(sorted({*_VERBS, "stop"}))
            raise ConfigError("unknown_verb", f"no such command; known: {known}")
        record, new = self.commands.submit(command_id, verb, args)
        if not new:
            return record
        log.info("command", id=command_id, verb=verb)
        if verb == "stop":
            record.state, record.result = "done", {"draining": True}
            self.stop()
            return record
        record.child = _VERBS[verb] or f"capture:{args.get('source')}"
        child = self._children.get(record.child)
        if child is None or child.down_for_good or self.draining:
            record.fail(CdcError("not_running", f"the process {record.child} is not running"))
        elif child.running:
            self._send(child, record)
        return record

    def _send(self, child: Child, record: CommandRecord) -> None:
        if child.send({"id": record.id, "verb": record.verb, "args": record.args}):
            record.state = "running"

    def _on_change(self, child: Child) -> None:
        view = child.view
        self._changed.set()
        phase = view.phase
        if self._phases.get(view.name) == phase:
            return
        self._phases[view.name] = phase
        for record in self.commands.open_of(view.name):
            if phase == "running" and record.state == "queued":
                self._send(child, record)
            elif phase in ("down", "ended") or (phase == "waiting" and record.state == "running"):
                record.fail(
                    CdcError(
                        "child_ended",
                        f"the process {view.name} ended before the command did",
                        remedy=f"run cdc {record.verb} again",
                    )
                )
        if phase in ("down", "waiting") and view.error is not None:
            sentence = _sentence(view)
            # The same trouble again is in the log, not once more before a person's eyes.
            if self._told.get(view.name) != sentence:
                self._told[view.name] = sentence
                self._notify(sentence)

    def _refusal(self) -> ConfigError | None:
        # A start that captures nothing, and that no restart could mend, must not look like one.
        captures = [view for view in self.views if view.source is not None]
        if not captures or not all(
            view.phase == "down"
            and view.exit_code == REFUSED
            and not view.was_ready
            and view.restarts == 0
            for view in captures
        ):
            return None
        error = captures[0].error or {}
        return ConfigError(
            str(error.get("code") or "refused"),
            str(error.get("message") or "capture was refused"),
            table=error.get("table"),
            position=error.get("position"),
            remedy=error.get("remedy"),
        )


def _sentence(view: ChildView) -> str:
    error = view.error or {}
    ending = "is down" if view.phase == "down" else "has ended and is started again"
    parts = [f"{view.name} {ending}: {error.get('message')}"]
    if error.get("table"):
        parts.append(f"  table: {error['table']}")
    if error.get("position"):
        parts.append(f"  position: {error['position']}")
    if error.get("remedy"):
        parts.append(f"  remedy: {error['remedy']}")
    return "\n".join(parts)
