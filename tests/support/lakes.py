"""Replicas of a LogGen's tables, compared with what its source holds."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
from deltalake import QueryBuilder

from cdc import codecs
from cdc.config import load_config
from cdc.lake import open_replica
from cdc.names import lake_folder, source_column
from spark_jobs.apply import Applier, ApplySettings, apply_once
from spark_jobs.log_state import LogAddress
from spark_jobs.rebuild import rebuild_table
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

    def rebuild(self, id, **options):
        """From offset zero of its topic; what ``rebuild_table`` tells."""
        applier = Applier(self.spark, self.address, self.settings)
        try:
            return rebuild_table(applier, self.gen.source, id, **options)
        finally:
            applier.close()

    def config(self, tables=None):
        """A cdc.yaml over the log and the lake, loaded: the source that it names does not exist.

        It stands beside the lake. ``tables`` is its list of them, in YAML.
        """
        file = Path(f"{self.folder}.yaml")
        if tables is None:
            tables = ", ".join(map(str, self.gen.tables))
        file.write_text(
            f"""\
project: test
log: {{bootstrap_servers: "{self.gen.bootstrap}", topic_prefix: "{self.gen.prefix}"}}
lake: {{path: "{self.folder}"}}
sources: {{shop: {{kind: postgres, host: h, database: d, user: u, tables: [{tables}]}}}}
"""
        )
        return load_config(file)

    def path(self, id):
        return lake_folder(self.folder, self.gen.source, *id)

    def replica(self, id):
        return open_replica(self.path(id), table=f"{self.gen.source}.{id}")

    def rows(self, id):
        """Key to row of normalised values, as another engine reads them, by the source's names."""
        schema = self.gen.tables[id].schema
        name = "t" + uuid.uuid4().hex
        builder = QueryBuilder().register(name, self.replica(id).table)
        table = pa.table(builder.execute(f"select * from {name}").read_all())
        table = table.rename_columns([source_column(column) for column in table.column_names])
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
