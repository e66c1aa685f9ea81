"""The lake of all cases: one Spark session applies every log and rebuilds the tables."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cdc.closing import Closing
from cdc.config import Config, load_config
from cdc.errors import CdcError
from cdc.names import TableId, lake_folder
from spark_jobs.apply import Applier, ApplySettings
from spark_jobs.log_state import LogAddress
from spark_jobs.rebuild import rebuild_table

#: Batches that run at the same time; each may work at two tables.
_AT_ONCE: Final = 2


class LakeSide(Closing):
    """Applies, rebuilds and reads replicas. Safe to use from several threads.

    Args:
        spark: The session.
        bootstrap: Of the broker.
        prefix: Of the topics.
        folder: Of the lake.
    """

    def __init__(self, spark: Any, bootstrap: str, prefix: str, folder: Path) -> None:
        self.folder = folder
        self._spark = spark
        self._address = LogAddress(bootstrap, {}, prefix)
        self._local = threading.local()
        self._appliers: list[Applier] = []
        self._configs: dict[str, Config] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="lake")

    def close(self) -> None:
        """Wait for what runs and let go of the clients."""
        self._pool.shutdown()
        for applier in self._appliers:
            applier.close()

    def add(self, source: str, config: Path) -> None:
        """Make a source known, before it is applied."""
        self._configs[source] = load_config(config)

    def apply(self, source: str) -> dict[str, CdcError]:
        """Bring a source's replicas to its newest frontier.

        Returns:
            Errors by ``source.schema.table``.
        """
        return self._pool.submit(self._apply, source).result()

    def rebuild(self, source: str, table: TableId) -> None:
        """Rebuild a replica from offset zero of its topic.

        Raises:
            CdcError: As ``rebuild_table``.
        """
        self._pool.submit(lambda: rebuild_table(self._applier(), source, table)).result()

    def replica(self, source: str, table: TableId) -> pa.Table | None:
        """A replica as an engine without Spark reads it; None: there is none."""
        path = lake_folder(str(self.folder), source, *table)
        if not DeltaTable.is_deltatable(path):
            return None
        found = QueryBuilder().register("t", DeltaTable(path)).execute("select * from t")
        return pa.table(found.read_all())

    def _apply(self, source: str) -> dict[str, CdcError]:
        while True:
            results = self._applier().run_pass([source])
            if not any(r.more and r.error is None for r in results):
                return {r.table: r.error for r in results if r.error is not None}

    def _applier(self) -> Applier:
        if not hasattr(self._local, "applier"):
            settings = ApplySettings(
                str(self.folder),
                policies=lambda source, table: (
                    self._configs[source].sources[source].policies_of(table)
                ),
            )
            self._local.applier = Applier(self._spark, self._address, settings)
            self._appliers.append(self._local.applier)
        applier: Applier = self._local.applier
        return applier
