"""Compares every table of the demo with Postgres, while nobody writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdc.config import Config
from cdc.errors import CdcError
from cdc.query.run import run_query
from cdc.runtime import source_conninfo
from deploy.demo.compare import Difference, delta_rows, difference, postgres_rows, query_rows
from deploy.demo.data import TABLES, DemoTable
from deploy.demo.watch import Watch


class Verifier:
    """Reads each table three ways: from Postgres, by ``cdc query``, and its Delta table.

    Args:
        config: The project.
        source: The source's name.
        watch: Knows the folders of the Delta tables.
    """

    def __init__(self, config: Config, source: str, watch: Watch) -> None:
        self._config = config
        self._source = source
        self._watch = watch

    def check(self, lsn: int, on_table: Callable[[str], None]) -> dict[str, int]:
        """Table name to rows, when all are equal.

        Args:
            lsn: What Postgres had written when the last writer had ended; log and Delta tables
                have reached it.
            on_table: Told which table comes next.

        Raises:
            CdcError: ``demo_differs``, naming every table and how many keys differ;
                ``demo_stale``, when an answer is older than ``lsn``.
        """
        differing: list[str] = []
        counts = {}
        ids = {id.table: id for id in self._config.sources[self._source].table_ids}
        for table in TABLES:
            id = ids[table.name]
            name = f"{self._source}.{id}"
            on_table(name)
            conninfo = source_conninfo(self._config, self._config.sources[self._source])
            expected = postgres_rows(conninfo, table)
            counts[table.name] = expected.num_rows
            for how, found in (
                ("cdc query", self._by_query(name, table, lsn)),
                ("its Delta table", delta_rows(self._watch.folder(id), table)),
            ):
                found_difference = difference(expected, found, table.key)
                if found_difference is not None:
                    differing.append(_sentence(name, how, found_difference))
        if differing:
            raise CdcError("demo_differs", "; ".join(differing))
        return counts

    def _by_query(self, name: str, table: DemoTable, lsn: int) -> Any:
        result = run_query(self._config, f"select * from {name}")  # noqa: S608 - our own names
        if result.as_of[self._source].position.lsn < lsn:
            raise CdcError(
                "demo_stale", "cdc query answers as of before the last change", table=name
            )
        return query_rows(result, table)


def _sentence(name: str, how: str, found: Difference) -> str:
    return f"{name} by {how} is not what Postgres holds: {found}"
