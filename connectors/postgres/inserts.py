"""Runs of inserts into one table, decoded many at a time into columns. Pure, hot.

A loaded or copied table arrives as thousands of such messages in a row, and a batch costs a
fraction of what they cost one by one. Whatever is unusual is left to the ordinary way, message
by message, which also says what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from cdc.batch_encoder import Column
from cdc.errors import ProtocolViolation
from cdc.unsent import UNSENT
from connectors.postgres.messages import Row
from connectors.postgres.pgoutput import read_row
from connectors.postgres.session import XLOG_DATA, XLOG_HEADER_SIZE

#: Shorter runs are not worth the trouble.
SHORTEST: Final = 16
#: Rows that are decoded, encoded and sent at once, at most.
LONGEST: Final = 1000
#: Tag, relation id, tuple kind and number of columns: equal for all messages of a run.
_HEAD: Final = slice(XLOG_HEADER_SIZE, XLOG_HEADER_SIZE + 8)
_KIND: Final = XLOG_HEADER_SIZE + 5
_ROW: Final = XLOG_HEADER_SIZE + 6
_VALUES: Final = XLOG_HEADER_SIZE + 8
_NEW: Final = ord("N")
#: Kind and upper bytes of the length of a value below 256 bytes. No text form holds a NUL.
_SHORT_TEXT: Final = b"t\0\0\0"
_first_byte = itemgetter(0)


def end_of_run(batch: Sequence[bytes], index: int, largest: int) -> int:
    """Where a run of inserts that begins with the Insert at ``index`` ends.

    Args:
        batch: CopyData messages.
        index: Of an Insert.
        largest: Larger messages, in bytes, belong to no run.

    Returns:
        The index after its last message; ``index`` if it is shorter than ``SHORTEST``.
    """
    head = batch[index][_HEAD]
    nearest = index + SHORTEST - 1
    if nearest >= len(batch) or batch[nearest][_HEAD] != head:
        return index
    end = index
    for data in batch[index : index + LONGEST]:
        if data[_HEAD] != head or data[0] != XLOG_DATA or len(data) > largest:
            break
        end += 1
    return end if end > nearest else index


def insert_columns(run: Sequence[bytes], width: int) -> Sequence[Column] | None:
    """The columns of a run's rows, or None if they have to be read one by one.

    Args:
        run: Messages of equal head, as of ``end_of_run``.
        width: Number of columns that each should have.
    """
    head = run[0]
    if head[_KIND] != _NEW or head[_ROW] << 8 | head[_ROW + 1] != width:
        return None
    # A row without NULL and long values is ``t 0 0 0 length value`` again and again.
    pieces = [data[_VALUES:].split(_SHORT_TEXT) for data in run]
    short = [row for row in pieces if len(row) == width + 1]
    columns = _short_columns(short, width)
    if columns is None or len(short) == len(run):
        return columns
    short_rows = zip(*columns, strict=True)
    rows: list[Row] = []
    try:
        for data, row in zip(run, pieces, strict=True):
            rows.append(next(short_rows) if len(row) == width + 1 else _whole_row(data))
    except (ProtocolViolation, IndexError, struct.error):
        return None
    return list(zip(*rows, strict=True))


def _short_columns(pieces: Sequence[list[bytes]], width: int) -> list[Column] | None:
    """The columns of rows that fell apart into nothing, then ``length value`` for each column.

    That each length is the one of its value proves, column after column, that the row was cut
    at its kinds and nowhere else.
    """
    if not pieces:
        return [()] * width
    before, *texts = zip(*pieces, strict=True)
    if any(before):
        return None
    columns: list[Column] = []
    try:
        for column in texts:
            values = [text[1:] for text in column]
            if bytes(map(_first_byte, column)) != bytes(map(len, values)):
                return None
            columns.append(values)
    except (IndexError, ValueError):  # no byte for the length, or more than one could tell
        return None
    return columns


def _whole_row(data: bytes) -> Row:
    row, end = read_row(data, _ROW)
    if end != len(data) or UNSENT in row:
        raise IndexError
    return row
