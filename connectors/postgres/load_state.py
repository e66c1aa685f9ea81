"""A load under way, what it works with, and its steps in control."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc.control import KeyValue, LoadRecord, TableRecord
from cdc.errors import CdcError
from cdc.load import Copier, LoadKey, LoadProgress
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.names import TableId
from cdc.schema import TableSchema
from cdc.states import (
    ERRORED,
    LOAD_TRANSITIONS,
    READY,
    TABLE_STATE_OF_LOAD,
    TABLE_TRANSITIONS,
    check_transition,
)
from connectors.postgres.load_barrier import Barrier
from connectors.postgres.load_catalog import LoadCatalog
from connectors.postgres.log_writer import LogWriter
from connectors.postgres.replay import Replay
from connectors.postgres.router import Router
from connectors.postgres.routes import RoutedTable


@dataclass(slots=True)
class Load:
    """A load under way; ``record`` is what control says, or will say with the next commit."""

    record: LoadRecord
    schema: TableSchema | None = None
    #: The intent is in control.
    written: bool = False
    #: No transaction is open that could have escaped the spool.
    clear: bool = False
    partial: dict[int, int] = field(default_factory=dict)
    replay: Replay | None = None
    #: Since when it waits for the frontier alone, monotonic seconds.
    waits_since: float | None = None
    #: Transactions that have to end before it begins; None: none, or they have.
    older: Barrier | None = None
    #: How far the stream has to be then, an LSN.
    not_before: int = 0
    #: Somebody wants it to end.
    cancelled: bool = False
    #: Why it has to begin anew.
    failed: CdcError | None = None

    @property
    def key(self) -> LoadKey:
        """The table and the number of the load."""
        return self.record.id, self.record.load

    @property
    def rows(self) -> int:
        """Copied so far, unfinished chunks included."""
        return self.record.rows + sum(self.partial.values())


@dataclass(frozen=True, slots=True)
class LoadPorts:
    """What the loads work with; all of one streaming connection.

    Args:
        admin: Of the log.
        reader: Of the log.
        copier: Of the source.
        catalog: Asks the source.
        router: Of the stream.
        writer: Of the log.
        replay_router: Makes a router for the replay of one table.
        filenodes: By relation id, of tables whose columns are as we know them.
        widths: Highest number of a column, by relation id, that is no news.
        publish: Checks tables and puts them into the publication, if they are not in it; gives
            why some cannot be captured as they are.
        keep_alive: Keeps Postgres informed while something takes long.
        ask_position: Makes a quiet server tell how far it is.
        progress: Told of rows that were copied.
    """

    admin: LogAdmin
    reader: LogReader
    copier: Copier
    catalog: LoadCatalog
    router: Router
    writer: LogWriter
    replay_router: Callable[[RoutedTable], Router]
    filenodes: dict[int, int]
    widths: dict[int, int]
    publish: Callable[[Sequence[TableId]], Mapping[TableId, CdcError]]
    keep_alive: Callable[[], None]
    ask_position: Callable[[], None]
    progress: Callable[[LoadProgress], None]


class LoadBook:
    """Takes loads, and the tables that follow them, from state to state.

    Args:
        ports: To write with.
        records: Of all tables; kept up to date.
    """

    def __init__(self, ports: LoadPorts, records: dict[TableId, TableRecord]) -> None:
        self._ports = ports
        self.records = records

    def now(self, load: Load, **changes: object) -> list[KeyValue]:
        """Change a load, and its table if that follows; the control records that say so."""
        before = load.record
        load.record = dataclasses.replace(before, **changes)  # type: ignore[arg-type]
        check_transition(LOAD_TRANSITIONS, before.state, load.record.state)
        found = [load.record.to_key_value()]
        table = self.records[before.id]
        state = TABLE_STATE_OF_LOAD.get(load.record.state)
        # A table becomes Ready only with the frontier from which on it is; one that was set aside
        # stays so until then.
        follows = table.state not in (READY, ERRORED)
        if follows and state is not None and state not in (table.state, READY):
            check_transition(TABLE_TRANSITIONS, table.state, state)
            table = dataclasses.replace(
                table,
                state=state,
                load=load.record.load,
                topic=load.record.topic,
                topic_id=load.record.topic_id,
            )
            self.records[before.id] = table
            found.append(table.to_key_value())
        return found

    def commit(self, control: Iterable[KeyValue]) -> None:
        """Commit, with the frontier as it is."""
        writer = self._ports.writer
        waiting = self._ports.router.take_control()
        writer.advance(writer.end_lsn, writer.last, [*waiting, *control])
