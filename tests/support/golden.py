"""Golden files: every kind of record in the log, byte for byte.

``python -m tests.support.golden`` writes them anew; a change in them breaks users.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdc import codecs
from cdc.control import (
    LoadRecord,
    OffsetRecord,
    SourceRecord,
    TableRecord,
    schema_key_value,
    truncate_key_value,
)
from cdc.counted import CountedEncoder
from cdc.envelope import Origin, OutRecord, RowEncoder, TransactionFields
from cdc.frontier import FrontierRecord, LastTransaction
from cdc.names import TableId
from cdc.position import Position, frontier
from cdc.schema import WireType
from cdc.states import COPYING, DONE, ERRORED, INTENDED, READY, RELOADS, REPLAYING, SNAPSHOTTING
from cdc.unsent import UNSENT
from tests.support.schemas import ALL_TYPES, all_types_row, all_types_schema, column, table_schema

FOLDER = Path(__file__).parents[1] / "cases" / "wire"
ORIGIN = Origin("1", "shop", "shop")
TXN = TransactionFields(0, 0x16B3750, 745, 1_700_000_000_123_456, 1_700_000_000_200, snapshot=False)
LOAD = TransactionFields(
    0, 0x16B377F, None, 1_700_000_000_000_000, 1_700_000_000_200, snapshot=True
)


def table_records():
    """Name to (key, value, headers)."""
    wide = RowEncoder(all_types_schema(), ORIGIN)
    nulls = [text if name == "id" else None for name, (_, text) in ALL_TYPES.items()]
    schema = table_schema(
        ("a", 25), ("id", 23), ("k%", 25), ("big", 25), key=("k%", "id"), version=3
    )
    two = RowEncoder(schema, ORIGIN)
    without_key = table_schema(("a", 25), ("n", 23), key=(), identity="f")
    counted = CountedEncoder(without_key, ORIGIN)
    old, new = [b"x", b"1", b"k", b"long"], [b"y", b"1", b"k", b"long"]
    key_only = [None, b"1", b"k", None]
    records: dict[str, list[OutRecord]] = {
        "snapshot row of every type": [wide.snapshot_row(all_types_row(), LOAD)],
        "insert of nulls": [wide.insert(nulls, TXN, 1)],
        "insert with a composite key": [two.insert(old, TXN, 2)],
        "update without old tuple": two.update("", None, new, TXN, 3),
        "update with identity FULL": two.update("O", old, new, TXN, 4),
        "update with an unsent column": two.update(
            "", None, [b"y", b"1", b"k", UNSENT], TXN, 5, ("big",)
        ),
        "update with a re-read column": two.update("", None, new, TXN, 6, ("big",)),
        "key change": two.update("K", key_only, [b"y", b"2", b"k", b"long"], TXN, 7),
        "key change with an unsent column": two.update(
            "K", key_only, [b"y", b"2", b"k", UNSENT], TXN, 8, ("big",)
        ),
        "delete": two.delete("K", key_only, TXN, 9),
        "delete with identity FULL": two.delete("O", old, TXN, 0xFFFFFFFE),
        "snapshot row without a key": [counted.loaded([b"x", b"1"], LOAD, 7)],
        "insert without a key": [counted.insert([b"x", None], TXN, 1)],
        "update without a key": counted.update("O", [b"x", None], [b"x", b"2"], TXN, 2),
        "delete without a key": counted.delete("O", [b"x", b"2"], TXN, 3),
    }
    return {
        name: [
            {
                "key": key.decode(),
                "value": None if value is None else value.decode(),
                "headers": [[name, text.decode()] for name, text in headers],
            }
            for key, value, headers in rows
        ]
        for name, rows in records.items()
    }


def control_records():
    """Name to (key, value)."""
    orders = TableId("public", "orders")
    schema = table_schema(
        column(1, "id", 23, not_null=True),
        column(3, "total", 1700, type="numeric(10,2)"),
        version=2,
        load=1,
    )
    ready = frontier(0, 0x16B3780)
    table = TableRecord(orders, SNAPSHOTTING, 1, "shop.public.orders", None, 1)
    records: dict[str, Any] = {
        "source": SourceRecord("7", 1, "cdc_p_shop", "cdc_p_shop", 0, 150018, "shop"),
        "offset": OffsetRecord(ready, 0x16B3780, "7", 1, "cdc_p_shop", 9120),
        "table while loading": table,
        "table ready": TableRecord(
            orders, READY, 1, table.topic, "uuid", 1, ready_from=ready, relid=16385,
            filenode=16385, pub_rel={"oid": 16400, "xmin": 740},
        ),
        "table errored": TableRecord(
            orders, ERRORED, 1, table.topic, "uuid", 1, ready_from=ready, last_good=ready,
            reason="a column was dropped", remedy="start again",
        ),
        "table never captured": TableRecord(
            orders, ERRORED, 0, "", None, 1, reason="has no key", remedy="add one", aside=RELOADS,
        ),
        "load intended": LoadRecord(
            orders, 1, table.topic, None, "chunks", None, INTENDED, slot="cdc_p_shop",
            spool="shop.__spool.public.orders",
        ),
        "load copying": LoadRecord(
            orders, 1, table.topic, "uuid", "chunks", 0x16B3780, COPYING, 10, 7,
            slot="cdc_p_shop", spool="shop.__spool.public.orders", step=8192,
            done=((0, 2), (4, 4)), estimate=40,
        ),
        "load of partitions": LoadRecord(
            orders, 1, table.topic, "uuid", "chunks", 0x16B3780, COPYING, 10, 6,
            slot="cdc_p_shop", spool="shop.__spool.public.orders",
            pieces=(((16400,), 8192, 5), ((16410, 16420), 30, 1)), done=((0, 2),), estimate=40,
        ),
        "load replaying": LoadRecord(
            orders, 1, table.topic, "uuid", "chunks", 0x16B3780, REPLAYING, 40, 7,
            slot="cdc_p_shop", spool="shop.__spool.public.orders", step=8192, done=((0, 6),),
            estimate=40, ready_after=0x16B3790, replayed=Position(0, 0x16B3788, 3),
            spool_offset=12, relation_offset=9, attempt=1,
        ),
        "load replaying, of a table without a key": LoadRecord(
            orders, 1, table.topic, "uuid", "chunks", 0x16B3780, REPLAYING, 40, 1,
            slot="cdc_p_shop", spool="shop.__spool.public.orders", step=8192, done=((0, 0),),
            ready_after=0x16B3790, snapshot="4294967300:4294967305:4294967300,4294967303",
        ),
        "load done": LoadRecord(
            orders, 1, table.topic, "uuid", "exported", 0x16B3780, DONE, 10, 2, "cdc_p_shop"
        ),
    }  # fmt: skip
    pairs = {name: record.to_key_value() for name, record in records.items()}
    pairs["schema"] = schema_key_value(schema)
    looked_through = (
        column(1, "id", 16401, type="positive", not_null=True, wire=WireType(codecs.INT4, -1)),
        column(2, "tags", 1009, type="text[]", wire=WireType(codecs.TEXT, -1, array=True)),
        column(3, "b", 1020, type="box[]", wire=WireType(603, -1, array=True, delimiter=";")),
    )
    wired = table_schema(*looked_through, version=3)
    pairs["schema with a domain and arrays"] = schema_key_value(wired)
    apart = replace(
        schema,
        columns=(*schema.columns[:-1], replace(schema.columns[-1], hidden=True)),
        dropped=(
            column(90, "kept", codecs.TEXT),
            replace(column(91, "gone", codecs.INT4), hidden=True),
        ),
        version=4,
    )
    pairs["schema with columns that are dropped and ignored"] = schema_key_value(apart)
    pairs["truncate"] = truncate_key_value(
        orders, 1, Position(0, 0x16B3790, 2), cascade=True, restart_identity=False
    )
    return {name: {"key": k.decode(), "value": v.decode()} for name, (k, v) in pairs.items()}


def frontier_records():
    """Name to value."""
    common: dict[str, Any] = {"sysid": "7", "timeline": 1, "slot": "cdc_p_shop", "control_end": 57}
    records = {
        "full": FrontierRecord(
            position=frontier(0, 0x16B3780), end_lsn=0x16B3780, last=None, max_commit_us=0,
            full=True, full_at=None, ends={"shop.public.orders": {0: 12, 1: 0}}, **common,
        ),
        "after a transaction": FrontierRecord(
            position=frontier(0, 0x16B3800), end_lsn=0x16B3800,
            last=LastTransaction(0x16B37D0, 745, 1_700_000_000_123_456),
            max_commit_us=1_700_000_000_123_456, full=False, full_at=9120,
            ends={"shop.public.orders": {1: 3}}, **common,
        ),
    }  # fmt: skip
    return {name: record.to_value().decode() for name, record in records.items()}


FILES = {
    "table_records.json": table_records,
    "control_records.json": control_records,
    "frontier_records.json": frontier_records,
}


def main():
    for name, build in FILES.items():
        (FOLDER / name).write_text(json.dumps(build(), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
