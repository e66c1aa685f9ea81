"""What the log says of a case's source, and whether it has settled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdc.closing import Closing
from cdc.control import ControlState, TableRecord
from cdc.envelope import LogRecord
from cdc.errors import LogError
from cdc.frontier import FrontierView
from cdc.log.reader import LogReader
from cdc.names import TableId
from cdc.position import Position
from cdc.states import ERRORED, REMOVED

#: Before the first start is through, and while a topic is being made.
_NOT_YET = ("topic_missing", "kafka_error")


@dataclass(frozen=True, slots=True)
class LogView:
    """The log at its newest frontier.

    Args:
        frontier: The frontier.
        control: Control at it.
    """

    frontier: FrontierView
    control: ControlState

    @property
    def tables(self) -> dict[TableId, TableRecord]:
        """The tables that are captured, or were set aside."""
        found = self.control.tables.items()
        return {id: record for id, record in found if record.state != REMOVED}

    @property
    def loading(self) -> list[str]:
        """Tables that are not what they will be: a load is under way, or never ended."""
        unfinished = {load.id for load in self.control.unfinished_loads()}
        return [
            f"{id} {record.state}"
            for id, record in self.tables.items()
            if id in unfinished or (record.ready_from is None and record.state != ERRORED)
        ]

    @property
    def aside(self) -> dict[TableId, TableRecord]:
        """The tables that were set aside."""
        return {id: record for id, record in self.tables.items() if record.state == ERRORED}

    def outline(self) -> dict[TableId, tuple[str, int]]:
        """State and load of each table."""
        return {id: (record.state, record.load) for id, record in self.tables.items()}


class LogSide(Closing):
    """Reader of one source's log; of one thread.

    Args:
        bootstrap: Of the broker.
        prefix: Of its topics.
        source: The source's name.
    """

    def __init__(self, bootstrap: str, prefix: str, source: str) -> None:
        self._reader = LogReader(bootstrap, topic_prefix=prefix)
        self._source = source

    def close(self) -> None:
        """Let go of the consumer."""
        self._reader.close()

    def view(self) -> LogView | None:
        """The log as it is now; None before the first frontier."""
        try:
            frontier, control = self._reader.newest(self._source)
        except LogError as error:
            if error.code not in _NOT_YET:
                raise
            return None
        return None if frontier is None else LogView(frontier, control)

    def records(self, view: LogView, table: TableId) -> Iterator[LogRecord]:
        """Records of a table's topic below a frontier, each partition in the order of offsets."""
        topic = view.control.tables[table].topic
        bound = view.frontier.position
        for partition, end in sorted(view.frontier.ends.get(topic, {}).items()):
            for record in self._reader.records(topic, partition, 0, end):
                if record.position < bound:
                    yield record

    def truncates(self, view: LogView, table: TableId) -> list[Position]:
        """Positions at which the table was emptied, below a frontier."""
        load = view.control.tables[table].load
        found = view.control.truncates.get((table, load), [])
        return sorted(p for p in found if p < view.frontier.position)
