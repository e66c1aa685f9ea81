"""Replicas of a LogGen's tables, compared with what its source holds."""

from __future__ import annotations

import uuid

import pyarrow as pa
from deltalake import QueryBuilder

from cdc import codecs
from cdc.lake import open_replica
from cdc.names import lake_folder
from spark_jobs.apply import ApplySettings, apply_once
from spark_jobs.log_state import LogAddress
from tests.support.compare import normal


class Lake:
    """One LogGen's log, applied to a lake of its own."""

    def __init__(self, spark, gen, folder, **settings):
        self.spark = spark
        self.gen = gen
        self.folder = str(folder)
        self.address = LogAddress(gen.bootstrap, {}, gen.prefix)
        self.settings = ApplySettings(self.folder, **settings)

    def apply(self):
        """Table name to its last result."""
        results = apply_once(self.spark, self.address, self.settings, [self.gen.source])
        return {r.table: r for r in results}

    def path(self, id):
        return lake_folder(self.folder, self.gen.source, *id)

    def replica(self, id):
        return open_replica(self.path(id), table=f"{self.gen.source}.{id}")

    def rows(self, id):
        """Key to row of normalised values, as another engine reads them."""
        schema = self.gen.tables[id].schema
        name = "t" + uuid.uuid4().hex
        builder = QueryBuilder().register(name, self.replica(id).table)
        table = pa.table(builder.execute(f"select * from {name}").read_all())
        found = {}
        for row in table.to_pylist():
            kept = {c.name: normal(c, row[c.name]) for c in schema.columns}
            key = tuple(kept[name] for name in schema.key)
            assert key not in found, "two rows of one key"
            found[key] = kept
        return found

    def expected(self, id):
        schema = self.gen.tables[id].schema
        converters = {c.name: codecs.from_json(c) for c in schema.columns}
        rows = {}
        for row in self.gen.rows[id].values():
            kept = {}
            for column in schema.columns:
                value = row.get(column.name)
                value = None if value is None else converters[column.name](value)
                kept[column.name] = normal(column, value)
            rows[tuple(kept[name] for name in schema.key)] = kept
        return rows

    def assert_same(self, *ids):
        for id in ids or self.gen.tables:
            assert self.rows(id) == self.expected(id), id
