"""Where changes go: the tables that are captured, and what the router is given to work with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc.batch_encoder import BatchEncoder
from cdc.envelope import RowEncoder
from cdc.names import TableId
from cdc.schema import TableSchema
from connectors.postgres.drift import CatalogColumn
from connectors.postgres.messages import Delete, Insert, Row, Update
from connectors.postgres.net_effect import NetEffect
from connectors.postgres.reread import Values, Wanted

#: ``TransactionalProducer.send``.
Send = Callable[
    [str, int, bytes | None, bytes | None, Sequence[tuple[str, bytes]]],
    None,
]
#: ``TransactionalProducer.send_all``.
SendAll = Callable[
    [str, Sequence[int], Sequence[bytes], Sequence[bytes], Sequence[Sequence[tuple[str, bytes]]]],
    bool,
]
Change = Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class RoutedTable:
    """A table that we capture, as of the frontier.

    Args:
        schema: Its newest schema version.
        topic: Of its load.
        partitions: Of the topic.
    """

    schema: TableSchema
    topic: str
    partitions: int


class Source(Protocol):
    """What the router has to ask the source itself; a test gives its own."""

    def columns(
        self, schema: TableSchema, names: Sequence[str], xid: int
    ) -> Mapping[str, CatalogColumn]:
        """What the catalog says of columns once the transaction is visible."""

    def reread(
        self, schema: TableSchema, columns: Sequence[int], wanted: Sequence[Wanted]
    ) -> list[Values | None]:
        """As ``Rereader.read``."""


class Route:
    """Where changes of one relation go, with everything looked up beforehand."""

    __slots__ = (
        "batches",
        "changes",
        "encoder",
        "insert",
        "net",
        "others",
        "partitions",
        "schema",
        "table",
        "topic",
        "width",
    )

    def __init__(self, table: RoutedTable, encoder: RowEncoder) -> None:
        self.table = table.schema.id
        self.schema = table.schema
        self.topic = table.topic
        self.partitions = table.partitions
        self.encoder = encoder
        self.batches = BatchEncoder(encoder)
        self.insert = encoder.insert
        self.width = len(table.schema.columns)
        # Of a partitioned table of identity FULL: columns that are not in the key.
        key = set(encoder.schema.key_indexes) if table.schema.partitioned else range(self.width)
        self.others = [i for i in range(self.width) if i not in key]
        #: For tables whose keys can swap within a transaction.
        self.net = NetEffect(encoder) if table.schema.deferrable else None
        self.changes = 0

    def old_kind(self, kind: str, old: Row | None) -> str:
        """What an old tuple is: ``K`` if it has no more than the key.

        A partition that is not of identity FULL, as its table is, sends its key, and the server
        calls that the whole row.
        """
        if kind == "O" and old is not None and self.others:
            return "O" if any(old[i] is not None for i in self.others) else "K"
        return kind


@dataclass(slots=True)
class SpoolRoute:
    """Where events of a relation wait.

    Args:
        topic: The spool.
        table: Whose load waits for it.
        described: The relation in force is in it.
    """

    topic: str
    table: TableId
    described: bool = False
