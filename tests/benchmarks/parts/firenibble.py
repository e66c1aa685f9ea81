"""The table that snapshots are measured with: 16 columns, about 200 bytes a row.

The rows are those of the peer's own harness, so that both can copy the very same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

NAME = "firenibble"
_TYPES = (
    "bigint primary key",
    "bigint",
    *("integer",) * 2,
    *("double precision",) * 4,
    *("varchar",) * 2,
    "date",
    "timestamp",
    *("varchar",) * 4,
)
_TABLE = ", ".join(f"f{number} {type}" for number, type in enumerate(_TYPES))
# The numbers are computed as numeric and stored as floats, so most have all of their digits.
_VALUES = """
    n, n * 7919 % 1000000007, n * 31 % 1000003, n % 97,
    n / 3.0, sqrt(abs(n)), n * 1.000001, n / -7.0,
    substr(hash, 1, 10), substr(hash, 11, 12),
    date '2001-01-01' + (n % 9000)::integer,
    timestamp '2020-01-01' + n * interval '1.234567 s',
    substr(hash, 1, 20), substr(hash, 5, 15), substr(hash, 9, 18), substr(hash, 13, 14)
"""
_BATCH = 10_000


def grow(conninfo: Mapping[str, Any], first: int, rows: int) -> None:
    """Bring the table from ``first`` rows to ``rows``, made anew when ``first`` is 0.

    Rows are numbered from 1. Afterwards the table is analyzed, its hint bits are set, and no
    checkpoint of it is left to be done.
    """
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        if first == 0:
            connection.execute(f"drop table if exists {NAME}")
            connection.execute(f"create table {NAME} ({_TABLE})")
        connection.execute("set synchronous_commit = off")
        for done in range(first, rows, _BATCH):
            numbers = f"generate_series({done + 1}::bigint, {min(done + _BATCH, rows)}) n"
            connection.execute(
                f"insert into {NAME} select {_VALUES} from {numbers}, md5(n::text) hash"
            )
        connection.execute(f"vacuum analyze {NAME}")
        connection.execute("checkpoint")
