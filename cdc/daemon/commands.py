"""Commands that the daemon was asked to do, by id: each is done once, however often asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cdc.errors import CdcError, ConfigError

FINISHED = frozenset({"done", "failed"})
_MOST_KEPT = 1000


@dataclass(slots=True)
class CommandRecord:
    """One command and how far it is.

    Attributes:
        state: ``queued``, ``running``, ``done`` or ``failed``.
        child: The child that works on it; None for the daemon itself.
    """

    id: str
    verb: str
    args: dict[str, Any]
    state: str = "queued"
    progress: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    child: str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in FINISHED

    def fail(self, error: CdcError) -> None:
        """End with an error, unless it has ended."""
        if not self.finished:
            self.state = "failed"
            self.error = error.to_json()

    def to_json(self) -> dict[str, Any]:
        """The answer of ``GET /v1/commands/ID``."""
        return {
            "v": 1,
            "id": self.id,
            "verb": self.verb,
            "args": self.args,
            "state": self.state,
            "progress": self.progress,
            "result": self.result,
            "error": self.error,
        }


class CommandLog:
    """The commands of this daemon's life, the oldest finished ones forgotten."""

    def __init__(self) -> None:
        self._records: dict[str, CommandRecord] = {}

    def get(self, command_id: str) -> CommandRecord | None:
        """The command with this id."""
        return self._records.get(command_id)

    def submit(
        self, command_id: str, verb: str, args: dict[str, Any]
    ) -> tuple[CommandRecord, bool]:
        """The record of a command, and whether it is new.

        Raises:
            ConfigError: ``command_id_taken``: the id belongs to another command.
        """
        known = self._records.get(command_id)
        if known is not None:
            if (known.verb, known.args) != (verb, args):
                raise ConfigError(
                    "command_id_taken", f"the id {command_id} was given to another command"
                )
            return known, False
        record = CommandRecord(command_id, verb, args)
        self._records[command_id] = record
        self._forget()
        return record, True

    def answered(self, message: dict[str, Any]) -> None:
        """Take a child's ``answer`` in (``cdc.daemon.channel``)."""
        record = self._records.get(str(message.get("id")))
        if record is None or record.finished:
            return
        state = message.get("state")
        if state == "running":
            record.state = "running"
            record.progress = _object(message.get("progress"))
        elif state == "done":
            record.state = "done"
            record.result = _object(message.get("result"))
        elif state == "failed":
            record.state = "failed"
            record.error = _object(message.get("error"))

    def open_of(self, child: str) -> list[CommandRecord]:
        """Commands that wait for ``child``."""
        return [r for r in self._records.values() if r.child == child and not r.finished]

    def _forget(self) -> None:
        surplus = len(self._records) - _MOST_KEPT
        if surplus > 0:
            old = [r.id for r in self._records.values() if r.finished][:surplus]
            for command_id in old:
                del self._records[command_id]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
