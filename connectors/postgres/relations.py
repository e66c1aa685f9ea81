"""What the stream has told of relations, against the tables that are captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.names import TableId
from cdc.position import Position
from cdc.schema import TableSchema
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.drift import CatalogColumn, next_schema
from connectors.postgres.messages import Relation
from connectors.postgres.routes import RoutedTable, Source
from connectors.postgres.spooling import undescribed


class Relations:
    """The relations of one replication connection.

    Args:
        settings: Of the capture.
        tables: The captured tables.
        source: Answers questions about columns.
    """

    def __init__(
        self, settings: CaptureSettings, tables: Mapping[TableId, RoutedTable], source: Source
    ) -> None:
        self.settings = settings
        #: The captured tables, as far as the stream has told.
        self.tables = dict(tables)
        #: Names of relations that had changes and that nobody captures.
        self.unknown: set[TableId] = set()
        self._source = source
        self._told: dict[int, Relation] = {}
        self._by_relid = {t.schema.relid: id for id, t in self.tables.items()}

    def tell(self, relation: Relation) -> bool:
        """The relation is so from here on; whether it was otherwise before.

        The server tells of a relation again after a GRANT, an ANALYZE and the like, too.
        """
        before = self._told.get(relation.relid)
        self._told[relation.relid] = relation
        return relation != before

    def put(self, table: RoutedTable) -> None:
        """A table is captured from here on, or has another schema or topic."""
        self.tables[table.schema.id] = table
        self._by_relid = {t.schema.relid: id for id, t in self.tables.items()}

    def remove(self, id: TableId) -> RoutedTable | None:
        """A table is captured no more; what it was, if it was."""
        table = self.tables.pop(id, None)
        if table is not None:
            self._by_relid.pop(table.schema.relid, None)
        return table

    def table_of(self, relid: int) -> RoutedTable | None:
        """The table whose changes come under this relation; None: it is not captured.

        Raises:
            ProtocolViolation: The stream has not told of it.
        """
        relation = self._told.get(relid)
        if relation is None:
            raise undescribed(relid)
        name = TableId(relation.namespace or "pg_catalog", relation.name)
        table = self.tables.get(self._by_relid.get(relid, name))
        if table is None:
            self.unknown.add(name)
        return table

    def schema_of(
        self, table: RoutedTable, relid: int, xid: int, position: Position
    ) -> TableSchema:
        """The schema with which changes of a relation are written.

        Args:
            table: Of ``table_of``.
            relid: The relation.
            xid: Of the open transaction.
            position: Of its change at hand.

        Raises:
            SchemaDrift: The table's topic ends here.
            CdcError: From Postgres.
        """
        known = table.schema

        def ask(names: Sequence[str]) -> Mapping[str, CatalogColumn]:
            return self._source.columns(known, names, xid)

        policy = self.settings.schema_policies.of(known.id)
        return next_schema(known, self._told[relid], ask, policy, position)
