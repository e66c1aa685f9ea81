"""Commands that the daemon passes on to capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.control import TableRecord
from cdc.daemon.channel import ChildChannel, Command
from cdc.errors import ConfigError
from cdc.names import TableId
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.loads import Loads


class CaptureCommands:
    """Takes commands and tells how far they are.

    ``snapshot {"tables": [[schema, table], …]}``: a new load of each; done when all are Ready.

    Args:
        settings: Of the capture.
        channel: To the daemon.
    """

    def __init__(self, settings: CaptureSettings, channel: ChildChannel) -> None:
        self._settings = settings
        self._channel = channel
        self._asked: dict[str, tuple[Command, tuple[TableId, ...]]] = {}
        #: Rows of loads, as far as they are copied.
        self.rows: dict[TableId, int] = {}

    def answer(self, loads: Loads | None, records: Mapping[TableId, TableRecord]) -> None:
        """Begin what was asked for since the last call, and report on the rest.

        Args:
            loads: Of the stream; None while there is no stream.
            records: Of all tables.
        """
        for command in self._channel.commands():
            try:
                self._begin(command, loads)
            except ConfigError as error:
                self._channel.failed(command, error)
        for command, ids in list(self._asked.values()):
            if left := ids if loads is None else loads.under_way(ids):
                self._channel.progress(command, left=len(left), rows=self._rows(ids))
            else:
                del self._asked[command.id]
                done = {self._settings.name_of(id): records[id].load for id in ids}
                self._channel.done(command, {"loads": done})

    def _begin(self, command: Command, loads: Loads | None) -> None:
        if command.verb != "snapshot":
            raise ConfigError("unknown_verb", f"capture has no command {command.verb!r}")
        if loads is None:
            raise ConfigError(
                "not_streaming", "capture does not stream yet", remedy="try again in a moment"
            )
        ids = tuple(TableId(*table) for table in command.args["tables"])
        loads.request(ids)
        for id in ids:
            self.rows[id] = 0
        self._asked[command.id] = command, ids

    def _rows(self, ids: Sequence[TableId]) -> dict[str, int]:
        return {self._settings.name_of(id): self.rows.get(id, 0) for id in ids}
