"""Commands that the daemon passes on to capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from cdc.control import TableRecord
from cdc.daemon.channel import ChildChannel, Command
from cdc.errors import CdcError, ConfigError, SourceRefused
from cdc.names import TableId
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.loads import Loads


class CaptureCommands:
    """Takes commands and tells how far they are.

    ``snapshot {"tables": [[schema, table], …], "priority": 0}``: a new load of each; done when
    all are Ready. ``pause``, ``resume`` and ``cancel {"tables": …}``: their loads.
    ``tables {"tables": [[schema, table], …]}``: capture these tables; done when that is in
    control, before new ones are loaded.

    Args:
        settings: Of the capture.
        channel: To the daemon.
        rows: Of loads, as far as they are copied.
    """

    def __init__(
        self, settings: CaptureSettings, channel: ChildChannel, rows: dict[TableId, int]
    ) -> None:
        self._settings = settings
        self._channel = channel
        # Commands that wait for loads, with the loads' numbers.
        self._asked: dict[str, tuple[Command, dict[TableId, int]]] = {}
        self._tables: tuple[Command, CaptureSettings] | None = None
        self._rows = rows

    def answer(self, loads: Loads | None, records: Mapping[TableId, TableRecord]) -> None:
        """Begin what was asked for since the last call, and report on the rest.

        Args:
            loads: Of the stream; None while there is no stream.
            records: Of all tables.
        """
        for command in self._channel.commands():
            try:
                self._begin(command, loads)
            except (ConfigError, SourceRefused) as error:
                self._channel.failed(command, error)
        for command, numbers in list(self._asked.values()):
            if left := list(numbers) if loads is None else loads.under_way(numbers):
                rows = {self._settings.name_of(id): self._rows.get(id, 0) for id in numbers}
                self._channel.progress(command, left=len(left), rows=rows)
            else:
                del self._asked[command.id]
                self._end(command, numbers, records, loads)

    def _end(
        self,
        command: Command,
        numbers: Mapping[TableId, int],
        records: Mapping[TableId, TableRecord],
        loads: Loads | None,
    ) -> None:
        """Nothing that the command waits for is under way any more."""
        for id, number in numbers.items():
            record = records.get(id)
            if record is None or record.load < number:
                reason = loads.why_ended(id, number) if loads is not None else None
                if reason is not None:
                    reason.table = self._settings.name_of(id)
                    self._channel.failed(command, reason)
                    return
                code, why = (
                    ("table_removed", "the table is not captured any more")
                    if record is None
                    else ("load_cancelled", f"load {number} of the table was cancelled")
                )
                error = ConfigError(code, why, table=self._settings.name_of(id))
                self._channel.failed(command, error)
                return
        done = {self._settings.name_of(id): records[id].load for id in numbers}
        self._channel.done(command, {"loads": done})

    @property
    def tables_wanted(self) -> bool:
        """Whether ``take_tables`` has something to give."""
        return self._tables is not None

    def take_tables(self) -> CaptureSettings | None:
        """The settings with the tables that were asked for; tell ``tables_changed`` next."""
        return None if self._tables is None else self._tables[1]

    def tables_changed(self, error: CdcError | None) -> None:
        """They are captured now, or were refused."""
        if self._tables is None:
            return
        (command, settings), self._tables = self._tables, None
        if error is not None:
            self._channel.failed(command, error)
            return
        self._settings = settings
        self._channel.done(command, {"tables": [settings.name_of(id) for id in settings.tables]})

    def _begin(self, command: Command, loads: Loads | None) -> None:
        if command.verb not in ("snapshot", "tables", "pause", "resume", "cancel"):
            raise ConfigError("unknown_verb", f"capture has no command {command.verb!r}")
        if loads is None:
            raise ConfigError(
                "not_streaming", "capture does not stream yet", remedy="try again in a moment"
            )
        ids = tuple(TableId(*table) for table in command.args["tables"])
        if command.verb == "tables":
            if self._tables is not None:
                raise ConfigError("busy", "the tables are being changed already")
            self._tables = command, dataclasses.replace(self._settings, tables=ids)
            return
        if command.verb == "snapshot":
            numbers = loads.request(ids, int(command.args.get("priority", 0)))
            self._asked[command.id] = command, numbers
            self._rows.update(dict.fromkeys(ids, 0))
            return
        if command.verb == "cancel":
            loads.cancel(ids)
        else:
            loads.pause(ids, paused=command.verb == "pause")
        self._channel.done(command, {"tables": [self._settings.name_of(id) for id in ids]})
