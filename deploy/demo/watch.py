"""How far everything is: the slot, the log, the Delta tables; read from the parts themselves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.config import Config
from cdc.frontier import Ends, FrontierView
from cdc.lake import Replica, open_replica
from cdc.log.reader import LogReader
from cdc.names import TableId, lake_folder
from cdc.runtime import resolve_log, source_conninfo


@dataclass(frozen=True, slots=True)
class Lag:
    """One look.

    Args:
        slot_bytes: WAL that the slot still holds back.
        log_seconds: Age of the newest transaction in the log, which is the log's lag while
            transactions keep coming.
        delta_records: Records of the log that are not in the Delta tables yet; about, for
            markers of transactions count too.
    """

    slot_bytes: int
    log_seconds: float
    delta_records: int


class Watch:
    """Looks at one source. Not for use by several threads.

    Args:
        config: The project, whose source has been loaded.
        source: The source's name.
    """

    def __init__(self, config: Config, source: str) -> None:
        self._config = config
        self._source = source
        self._settings = config.sources[source]
        self._tables = self._settings.table_ids
        bootstrap, security = resolve_log(config)
        self._reader = LogReader(bootstrap, security, topic_prefix=config.log.topic_prefix)
        control = self._reader.control_state(source)
        self._topics = {id: control.tables[id].topic for id in self._tables}
        conninfo: dict[str, Any] = {**source_conninfo(config, self._settings)}
        self._postgres = psycopg.connect(**conninfo, autocommit=True)

    def close(self) -> None:
        """Let go of log and source."""
        self._reader.close()
        self._postgres.close()

    def folder(self, table: TableId) -> str:
        """Folder of a table's replica."""
        return lake_folder(self._config.lake.path, self._source, *table)

    def written(self) -> int:
        """LSN up to which Postgres has written."""
        return int(self._number("select pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def captured(self) -> int:
        """LSN up to which the log is complete."""
        return self._view().position.lsn

    def lag(self) -> Lag:
        """Look at everything once."""
        held = self._number(
            "select pg_current_wal_lsn() - confirmed_flush_lsn from pg_replication_slots"
            " where slot_name = %s",
            self._settings.slot_name,
        )
        view = self._view()
        age = time.time() - view.record.max_commit_us / 1e6
        behind = sum(self._behind(view, table) for table in self._tables)
        return Lag(int(held), max(0.0, age), behind)

    def behind(self) -> int:
        """Records of the log that are not in the Delta tables yet; 0 is exact."""
        view = self._view()
        return sum(self._behind(view, table) for table in self._tables)

    def replica(self, table: TableId) -> Replica | None:
        """The Delta table, at its newest version."""
        return open_replica(self.folder(table), table=f"{self._source}.{table}")

    def _view(self) -> FrontierView:
        view = self._reader.frontier(self._source)
        if view is None:
            raise RuntimeError("the source has not been loaded")
        return view

    def _behind(self, view: FrontierView, table: TableId) -> int:
        ends: Ends = {self._topics[table]: view.ends.get(self._topics[table], {})}
        replica = self.replica(table)
        if replica is not None and replica.position is not None:
            if replica.position >= view.position:
                return 0
            have = replica.ends or {}
        else:
            have = {}
        return sum(
            max(0, end - have.get(partition, 0))
            for partition, end in ends[self._topics[table]].items()
        )

    def _number(self, statement: str, *values: str) -> Any:
        row = self._postgres.execute(statement.encode(), values).fetchone()
        return row[0] if row is not None and row[0] is not None else 0
