"""Commands that the daemon passes on to capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import structlog

from cdc.control import TableRecord
from cdc.daemon.channel import ChildChannel, Command
from cdc.errors import CdcError, ConfigError
from cdc.names import TableId
from cdc.schema_policy import SchemaPolicies
from cdc.states import ERRORED
from cdc.table_names import TablePattern
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.loads import Loads

log = structlog.get_logger(__name__)


class CaptureCommands:
    """Takes commands and tells how far they are.

    ``snapshot {"tables": [[schema, table], …], "priority": 0}``: a new load of each; done when
    all are Ready. ``pause``, ``resume`` and ``cancel {"tables": …}``: their loads.
    ``tables {"tables": [[schema, table], …], "patterns": […], "keys": [[schema, table, [column,
    …]], …], "schema_policies": {…}}``: capture these tables, with these keys, and those that match;
    done when that is in control, before new ones are loaded.

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
        self._tables_taken = False
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
            except CdcError as error:
                self._channel.failed(command, error)
        for command, numbers in list(self._asked.values()):
            if left := list(numbers) if loads is None else loads.under_way(numbers):
                rows = {self._settings.name_of(id): self._rows.get(id, 0) for id in numbers}
                waiting = [self._settings.name_of(id) for id in left]
                self._channel.progress(command, left=len(left), waiting=waiting, rows=rows)
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
        """The settings with the tables that were asked for.

        ``tables_changed`` or ``tables_refused`` is to be told next.
        """
        self._tables_taken = self._tables is not None
        return None if self._tables is None else self._tables[1]

    def tables_refused(self, error: CdcError) -> None:
        """All stay as they were."""
        if self._tables is None or not self._tables_taken:
            log.warning("tables that match patterns cannot be looked at", **error.to_json())
            return
        (command, _), self._tables = self._tables, None
        self._channel.failed(command, error)

    def tables_changed(self, records: Mapping[TableId, TableRecord], loads: Loads) -> None:
        """Those that were taken are captured now, or set aside."""
        if self._tables is None or not self._tables_taken:
            return
        (command, self._settings), self._tables = self._tables, None
        aside = [id for id in records if records[id].state == ERRORED]
        aside = sorted(set(aside).difference(loads.under_way(aside)))
        wanted = dict.fromkeys(self._settings.tables) | dict.fromkeys(sorted(records))
        name_of = self._settings.name_of
        self._channel.done(
            command,
            {
                "tables": [name_of(id) for id in wanted if id not in aside],
                "set_aside": {
                    name_of(id): {"reason": records[id].reason, "remedy": records[id].remedy}
                    for id in aside
                },
            },
        )

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
            patterns = tuple(map(TablePattern.from_json, command.args.get("patterns", ())))
            keys = {TableId(*id): tuple(key) for *id, key in command.args.get("keys", ())}
            policies = self._settings.schema_policies
            if "schema_policies" in command.args:
                policies = SchemaPolicies.from_json(command.args["schema_policies"])
            settings = dataclasses.replace(
                self._settings, tables=ids, patterns=patterns, keys=keys, schema_policies=policies
            )
            self._tables, self._tables_taken = (command, settings), False
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
