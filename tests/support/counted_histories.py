"""Histories of a table without a key: its records, and its rows after each change."""

from collections import Counter

from hypothesis import strategies as st

from cdc.counted import CountedEncoder
from cdc.envelope import Origin, OutRecord, TransactionFields
from cdc.position import MAX_LSN, Position
from cdc.schema import Column, TableSchema

EVERYTHING = Position(1, MAX_LSN, 0)
SCHEMA = TableSchema(
    "public", "t", 1, 1, 1, "f", (), (Column(1, "v", 25, -1, "text", False),), Position(0, 1, 0)
)
ENCODER = CountedEncoder(SCHEMA, Origin("0", "shop", "db"))
VALUES = ["", "a", "b", None]

texts = st.sampled_from(VALUES)
#: What a transaction does: an insert, a delete or an update of a row that is there, a truncate.
actions = st.one_of(
    st.tuples(st.just("insert"), texts),
    st.tuples(st.just("delete"), st.integers(0, 50)),
    st.tuples(st.just("update"), st.integers(0, 50), texts),
    st.tuples(st.just("truncate")),
)


def row(text):
    return (None if text is None else text.encode(),)


def played(loaded, changes):
    """Records of a history, its truncates, and the rows at each of its positions."""
    load = TransactionFields(0, 7, None, 0, 0, snapshot=True)
    records: list[OutRecord] = [ENCODER.loaded(row(v), load, n) for n, v in enumerate(loaded, 1)]
    rows, truncates = list(loaded), []
    states = [(Position(0, 8, 0), Counter(rows))]
    for n, (kind, *arguments) in enumerate(changes):
        lsn = 16 + 8 * n
        txn = TransactionFields(0, lsn, 1, 0, 0, snapshot=False)
        if kind == "insert":
            rows.append(arguments[0])
            records.append(ENCODER.insert(row(arguments[0]), txn, 1))
        elif kind == "truncate":
            rows.clear()
            truncates.append(Position(0, lsn, 1))
        elif rows:
            old = rows.pop(arguments[0] % len(rows))
            if kind == "delete":
                records += ENCODER.delete("O", row(old), txn, 1)
            else:
                rows.append(arguments[1])
                records += ENCODER.update("O", row(old), row(arguments[1]), txn, 1)
        states.append((Position(0, lsn + 1, 0), Counter(rows)))
    return records, truncates, states
