"""Which later updates of a batch will need a re-read too, so that one query serves many. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc.errors import ProtocolViolation
from cdc.schema import TableSchema
from cdc.unsent import UNSENT
from connectors.postgres.messages import Begin, Relation, Row, Update
from connectors.postgres.pgoutput import decode
from connectors.postgres.reread import Key, Wanted
from connectors.postgres.session import XLOG_DATA, XLOG_HEADER_SIZE

#: Messages that are looked at, at most.
_SCAN: Final = 2000


def row_key(schema: TableSchema, row: Row | Sequence[object]) -> Key | None:
    """The key of a row as text; None if the row does not hold all of it."""
    key = []
    for i in schema.key_indexes:
        value = row[i]
        if not isinstance(value, bytes):
            return None
        key.append(value.decode())
    return tuple(key)


def upcoming(
    batch: Sequence[bytes], after: int, schema: TableSchema, xid: int, limit: int
) -> dict[int, Wanted]:
    """Updates of a table with unsent values, by their index in the batch.

    Args:
        batch: CopyData messages.
        after: Index of the message at hand.
        schema: Of the table.
        xid: The open transaction.
        limit: Most rows to name.
    """
    found: dict[int, Wanted] = {}
    relid, width = schema.relid, len(schema.columns)
    for i in range(after + 1, min(len(batch), after + 1 + _SCAN)):
        if len(found) >= limit:
            break
        data = batch[i]
        if data[0] != XLOG_DATA:
            continue
        try:
            event = decode(data, XLOG_HEADER_SIZE)
        except ProtocolViolation:
            break  # told of when its turn comes
        if isinstance(event, Begin):
            xid = event.xid
        elif isinstance(event, Relation) and event.relid == relid:
            break
        elif (
            isinstance(event, Update)
            and event.relid == relid
            and event.old_kind != "O"
            and len(event.new) == width
            and UNSENT in event.new
        ):
            try:
                key = row_key(schema, event.new)
            except UnicodeDecodeError:
                break
            if key is not None:
                found[i] = Wanted(key, xid)
    return found
