"""Writes the log of a made-up source, as capture would, and remembers what the source holds.

    with LogGen(bootstrap, prefix) as gen:
        gen.create([schema])                     # topics; tables Snapshotting
        gen.load({schema.id: [row, …]})          # snapshot rows; tables Ready; first frontier
        gen.transaction(Insert(id, row), Update(id, old, new), Delete(id, row), Truncate(id))
        gen.begin_load(schema, [row, …])         # the next load, into a topic of its own
        gen.switch(schema.id)                    # the table is of that load now
        gen.rows[schema.id]                      # key bytes → {column: JSON value}

Rows are sequences of Postgres text (bytes), None or UNSENT, in the order of the columns.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from cdc import states
from cdc.control import LoadRecord, SourceRecord, TableRecord, schema_key_value, truncate_key_value
from cdc.envelope import Origin, RowEncoder, TransactionFields
from cdc.frontier import FrontierRecord, LastTransaction, merge_ends
from cdc.log.admin import LogAdmin
from cdc.log.partition import partition_of
from cdc.log.producer import TransactionalProducer
from cdc.log.topics import control_topic as control_spec
from cdc.log.topics import frontier_topic as frontier_spec
from cdc.log.topics import table_topic
from cdc.names import TableId, control_topic, frontier_topic, topic_name
from cdc.position import Position, frontier
from cdc.unsent import UNSENT

_DAY_MS = 86_400_000
_LOAD_ROWS = 50_000


@dataclass(frozen=True)
class Insert:
    table: TableId
    row: list[object]


@dataclass(frozen=True)
class Update:
    """``old`` is the whole row; what is UNSENT in ``new`` keeps its value; ``reread`` fills it."""

    table: TableId
    old: list[object]
    new: list[object]
    reread: list[object] | None = None


@dataclass(frozen=True)
class Delete:
    table: TableId
    row: list[object]


@dataclass(frozen=True)
class Truncate:
    table: TableId


@dataclass
class _Table:
    schema: object
    topic: str
    partitions: int
    load: int = 1
    topic_id: str = ""
    consistent_point: int = 0
    rows: dict[Any, Any] = field(default_factory=dict)
    encoder: RowEncoder = field(init=False)

    def __post_init__(self):
        self.use(self.schema)

    def use(self, schema):
        self.schema = schema
        self.encoder = RowEncoder(schema, Origin("test", "shop", "shop"))


class LogGen:
    """One source's log."""

    def __init__(self, bootstrap, prefix, *, source="shop", epoch=0, history_ms=7 * _DAY_MS):
        self.bootstrap = bootstrap
        self.prefix = prefix
        self.source = source
        self.epoch = epoch
        self.history_ms = history_ms
        self.rows = {}
        self.tables = {}
        self.loading = {}
        self.lsn = 0x1000000
        self.xid = 700
        self.ends = {}
        self.full_at = None
        self.since_full = 0
        self.full_every = 50
        self.control_end = 0
        self.frontier_end = 0
        self.admin = LogAdmin(bootstrap)
        self.producer = TransactionalProducer(bootstrap, f"{prefix}{source}.capture")
        self.producer.init()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.producer.close()

    @property
    def position(self):
        """The newest frontier."""
        return frontier(self.epoch, self.lsn)

    def create(self, schemas, partitions=1, load=1):
        """Topics and control records of tables whose load is under way."""
        specs = []
        for schema in schemas:
            topic = topic_name(self.prefix, self.source, schema.schema, schema.table, load)
            self.tables[schema.id] = _Table(schema, topic, partitions, load)
            self.rows[schema.id] = {}
            specs.append(
                table_topic(
                    topic, partitions=partitions, replication_factor=1, history_ms=self.history_ms
                )
            )
        specs.append(control_spec(control_topic(self.prefix, self.source), replication_factor=1))
        specs.append(
            frontier_spec(
                frontier_topic(self.prefix, self.source),
                replication_factor=1,
                history_ms=self.history_ms,
            )
        )
        infos = self.admin.create_topics(specs, accept_existing=True)
        records = [SourceRecord("1", 1, "slot", "pub", self.epoch, 150000, "shop").to_key_value()]
        for schema in schemas:
            table = self.tables[schema.id]
            table.topic_id = infos[table.topic].topic_id
            records.append(schema_key_value(schema))
            records.append(self._table_record(schema.id, states.SNAPSHOTTING).to_key_value())
        self.producer.begin()
        self._control(records)
        self._commit()

    def load(self, rows, *, remember=True):
        """Snapshot rows, tables Ready, and the first full frontier."""
        self.lsn += 0x100
        consistent_point = self.lsn
        self.producer.begin()
        for id, found in rows.items():
            loaded = self._rows(self.tables[id], found, consistent_point)
            if remember:
                self.rows[id].update(loaded)
        records = []
        for id, table in self.tables.items():
            table.consistent_point = consistent_point
            records.append(self._load_record(id, table, states.DONE).to_key_value())
            records.append(self._table_record(id, states.READY).to_key_value())
        self._take_ends()
        self._control(records)
        self._frontier(None, full=True)
        self._commit()

    def begin_load(self, schema, rows):
        """The next load of a Ready table: copied whole, and not yet what readers use."""
        id, before = schema.id, self.tables[schema.id]
        load = before.load + 1
        schema = dataclasses.replace(schema, load=load)
        topic = topic_name(self.prefix, self.source, id.schema, id.table, load)
        spec = table_topic(
            topic, partitions=before.partitions, replication_factor=1, history_ms=self.history_ms
        )
        info = self.admin.create_topics([spec])[topic]
        table = _Table(schema, topic, before.partitions, load, info.topic_id, self.lsn)
        self.loading[id] = table
        self.producer.begin()
        table.rows = self._rows(table, rows, self.lsn)
        self._take_ends()
        record = self._load_record(id, table, states.COPYING, rows=len(rows))
        self._control([schema_key_value(schema), record.to_key_value()])
        self._frontier(None, full=True)
        self._commit()

    def switch(self, id):
        """The load that was begun is done: one transaction changes the table's topic."""
        self.lsn += 0x100
        table = self.tables[id] = self.loading.pop(id)
        self.rows[id] = table.rows
        self.producer.begin()
        self._control(
            [
                self._load_record(id, table, states.DONE, rows=len(table.rows)).to_key_value(),
                self._table_record(id, states.READY).to_key_value(),
            ]
        )
        self._frontier(None)
        self._commit()

    def set_load(self, id, number, **fields):
        """A load's control record; the frontier moves with it."""
        table = self.tables[id]
        record = LoadRecord(id, number, table.topic, table.topic_id, "chunks", self.lsn, "copying")
        self.producer.begin()
        self._control([dataclasses.replace(record, **fields).to_key_value()])
        self._frontier(None)
        self._commit()

    def transaction(self, *changes, gap=8):
        """One source transaction as one Kafka transaction; returns the new frontier."""
        self._transaction(changes, gap)
        return self.position

    def _transaction(self, changes, gap):
        start, self.lsn = self.lsn, self.lsn + gap
        self.xid += 1
        commit_us = _now_us()
        txn = TransactionFields(
            self.epoch, start, self.xid, commit_us, commit_us // 1000, snapshot=False
        )
        records = []
        self.producer.begin()
        for ordinal, change in enumerate(changes, 1):
            table = self.tables[change.table]
            rows = self.rows[change.table]
            if isinstance(change, Truncate):
                rows.clear()
                records.append(
                    truncate_key_value(
                        change.table,
                        table.load,
                        Position(self.epoch, start, ordinal),
                        cascade=False,
                        restart_identity=False,
                    )
                )
            else:
                for key, value, headers in self._records(table, rows, change, txn, ordinal):
                    self._send(table, key, value, headers)
        self._take_ends()
        if records:
            self._control(records)
        self._frontier(LastTransaction(start, self.xid, commit_us))
        self._commit()

    def _records(self, table, rows, change, txn, ordinal):
        encoder = table.encoder
        if isinstance(change, Insert):
            rows[encoder.key(change.row)] = orjson.loads(encoder.image(change.row))
            return [encoder.insert(change.row, txn, ordinal)]
        if isinstance(change, Delete):
            rows.pop(encoder.key(change.row), None)
            return encoder.delete("K", change.row, txn, ordinal)
        unsent = tuple(
            name
            for name, value in zip(table.schema.column_names, change.new, strict=True)
            if value is UNSENT
        )
        whole = [
            old if new is UNSENT else new for old, new in zip(change.old, change.new, strict=True)
        ]
        old_key, new_key = encoder.key(change.old), encoder.key(change.new)
        rows.pop(old_key, None)
        rows[new_key] = orjson.loads(encoder.image(whole))
        sent = change.new
        if change.reread is not None:
            sent = [
                reread if new is UNSENT else new
                for reread, new in zip(change.reread, change.new, strict=True)
            ]
        if old_key == new_key:
            return encoder.update("", None, sent, txn, ordinal, unsent)
        return encoder.update("K", change.old, sent, txn, ordinal, unsent)

    def keepalive(self, by=64):
        """The frontier moves, nothing else."""
        self.lsn += by
        self.producer.begin()
        self._frontier(None)
        self._commit()

    def alter(self, schema):
        """A new schema version, from the next transaction on."""
        schema = dataclasses.replace(schema, valid_from=Position(self.epoch, self.lsn, 1))
        self.tables[schema.id].use(schema)
        self.producer.begin()
        self._control([schema_key_value(schema)])
        self._commit()
        return schema

    def set_state(self, id, state, **fields):
        """A table's control record; the frontier moves with it."""
        self.producer.begin()
        record = dataclasses.replace(self._table_record(id, state), **fields)
        self._control([record.to_key_value()])
        self._frontier(None)
        self._commit()

    # --- inside ---

    def _table_record(self, id, state):
        table = self.tables[id]
        return TableRecord(
            id,
            state,
            table.load,
            table.topic,
            table.topic_id,
            table.partitions,
            ready_from=self.position if state != states.SNAPSHOTTING else None,
        )

    def _load_record(self, id, table, state, **fields):
        point = table.consistent_point
        return LoadRecord(
            id, table.load, table.topic, table.topic_id, "chunks", point, state, **fields
        )

    def _rows(self, table, rows, consistent_point):
        """Send snapshot rows; key to row."""
        fields = TransactionFields(
            self.epoch, consistent_point - 1, None, _now_us(), _now_us() // 1000, snapshot=True
        )
        found = {}
        for number, row in enumerate(rows, 1):
            if number % _LOAD_ROWS == 0:
                # Kafka ends a transaction that is open for longer than a minute.
                self._take_ends()
                self._commit()
                self.producer.begin()
            key, value, headers = table.encoder.snapshot_row(row, fields)
            self._send(table, key, value, headers)
            found[key] = orjson.loads(table.encoder.image(row))
        return found

    def _send(self, table, key, value, headers):
        self.producer.send(table.topic, partition_of(key, table.partitions), key, value, headers)

    def _take_ends(self):
        """Ends of table topics that this transaction wrote to."""
        tables = [*self.tables.values(), *self.loading.values()]
        topics = {table.topic for table in tables}
        self._touched = {t: p for t, p in self.producer.ends().items() if t in topics}
        merge_ends(self.ends, self._touched)

    def _control(self, records):
        topic = control_topic(self.prefix, self.source)
        for key, value in records:
            self.control_end = self.producer.send_reported(topic, 0, key, value)

    def _commit(self):
        """Commit, and wait like capture until readers can see the frontier that came with it.

        And control, which is all that they have before the first frontier.
        """
        self.producer.commit()
        ends = {
            frontier_topic(self.prefix, self.source): self.frontier_end,
            control_topic(self.prefix, self.source): self.control_end,
        }
        while True:
            seen = self.admin.offsets_of(dict.fromkeys(ends, 1))
            if all(seen[topic][0].last_stable >= end for topic, end in ends.items()):
                return
            time.sleep(0.001)

    def _frontier(self, last, full=False):
        full = full or self.full_at is None or self.since_full >= self.full_every
        touched = getattr(self, "_touched", {})
        everything = {
            table.topic: {
                p: self.ends.get(table.topic, {}).get(p, 0) for p in range(table.partitions)
            }
            for table in [*self.tables.values(), *self.loading.values()]
        }
        record = FrontierRecord(
            position=self.position,
            end_lsn=self.lsn,
            sysid="1",
            timeline=1,
            slot="slot",
            last=last,
            max_commit_us=_now_us(),
            control_end=self.control_end,
            full=full,
            full_at=None if full else self.full_at,
            ends=everything if full else touched,
        )
        topic = frontier_topic(self.prefix, self.source)
        end = self.frontier_end = self.producer.send_reported(topic, 0, None, record.to_value())
        self._touched = {}
        self.since_full = 0 if full else self.since_full + 1
        if full:
            self.full_at = end - 1


def _now_us():
    return time.time_ns() // 1000
