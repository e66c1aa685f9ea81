"""A captured database whose tables are verified, with a lake of replicas that tests make up."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import orjson
from deltalake import CommitProperties, DeltaTable, write_deltalake

from cdc.cli.main import run
from cdc.config import load_config
from cdc.log.producer import TransactionalProducer
from cdc.names import TableId, lake_folder
from cdc.verify.run import VerifyOptions, run_verify
from connectors.postgres.verify_source import open_snapshot
from tests.support.replicas import write_replica

#: Changes of a table that come to nothing.
TOUCH = {
    "orders": ("insert into orders values (-1)", "delete from orders where id = -1"),
    "places": ("insert into places values ('', '')", "delete from places where country = ''"),
}


class Verifying:
    """A project over a ``Capturing``.

    Args:
        folder: For cdc.yaml and the lake.
        capturing: Of the source.
    """

    def __init__(self, folder, capturing):
        self.capturing = capturing
        self.lake = folder / "lake"
        self.path = folder / "cdc.yaml"
        conninfo, settings = capturing.conninfo, capturing.settings
        password = folder / "password"
        password.write_text(conninfo.get("password", ""))
        password.chmod(0o600)
        self.path.write_text(
            f"""\
project: test
log: {{bootstrap_servers: "{capturing.bootstrap}", topic_prefix: "{settings.topic_prefix}"}}
lake: {{path: ./lake}}
sources:
  shop:
    kind: postgres
    host: {conninfo["host"]}
    port: {conninfo["port"]}
    database: {conninfo["dbname"]}
    user: {conninfo["user"]}
    password: {{file: ./password}}
    tables: [{", ".join(str(t) for t in settings.tables)}]
"""
        )
        self.config = load_config(self.path)
        #: Statements to run at the source right after the snapshot is taken.
        self.meanwhile: tuple[str, ...] = ()
        #: Called then.
        self.when_open = lambda: None
        #: How long open transactions are waited for.
        self.wait_s = 20.0

    def verify(self, *tables, **options):
        """Outcomes by the tables' own names."""
        names = [f"shop.public.{table}" for table in tables]
        found = VerifyOptions(**{"wait_s": 20.0, **options})
        result = run_verify(self.config, names, self.open, found)
        return {table.table.split(".")[-1]: table for table in result.tables}

    def different(self, table, **options):
        """The outcome of a table that must differ."""
        result = self.verify(table, **options)[table]
        assert result.outcome == "different", result.error
        return result

    @contextmanager
    def open(self, source):
        with open_snapshot(self.capturing.conninfo, self.wait_s) as snapshot:
            self.capturing.execute(*self.meanwhile)
            self.when_open()
            yield snapshot

    def cli(self, *arguments):
        """The exit code of ``cdc verify``, run in this process."""
        return run(["-c", str(self.path), "verify", *arguments])

    # --- replicas and their corruption ---

    def write_replica(self, table, rows=None):
        """A replica with what the log holds of a table now, or with other rows."""
        id, view = TableId("public", table), self.capturing.frontier()
        control = self.capturing.control()
        record = control.tables[id]
        write_replica(
            self.lake,
            "shop",
            control.schema_at(id, record.load, view.position),
            self.capturing.state(table) if rows is None else rows,
            view.position,
            record.topic_id,
            ends=view.ends.get(record.topic, {}),
        )

    def replace_replica(self, table):
        """The same anew."""
        shutil.rmtree(self._folder(table))
        self.write_replica(table)

    def update(self, table, predicate, **values):
        """Change rows of a replica; values are SQL."""
        with self._corrupting(table) as (opened, properties):
            opened.update(values, predicate=predicate, commit_properties=properties)

    def delete(self, table, predicate):
        """Take rows out of a replica."""
        with self._corrupting(table) as (opened, properties):
            opened.delete(predicate, commit_properties=properties)

    def copy(self, table, id, to):
        """Add a copy of a row to a replica, with another id."""
        with self._corrupting(table) as (opened, properties):
            rows = opened.to_pyarrow_table(filters=[("id", "=", id)])
            rows = rows.set_column(0, rows.field(0), [[to]])
            write_deltalake(opened, rows, mode="append", commit_properties=properties)

    @contextmanager
    def _corrupting(self, table):
        """The Delta table, and what makes a commit that changes it look like ours."""
        opened = DeltaTable(self._folder(table))
        version, note = opened.version(), opened.history(1)[0]["userMetadata"]
        yield opened, CommitProperties(custom_metadata={"userMetadata": note})
        commit = Path(self._folder(table)) / "_delta_log" / f"{version + 1:020}.json"
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["readVersion"] = version
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def _folder(self, table):
        return lake_folder(str(self.lake), "shop", "public", table)

    # --- the log ---

    def forge(self, table, key, **values):
        """Change a row in the log alone, at the position of its newest record."""
        capturing = self.capturing
        *_, last = [r for r in capturing.records(table) if r.key == key]
        topic = capturing.control().tables[TableId("public", table)].topic
        with capturing.readers.open() as reader:
            (batch,) = reader.raw_records(topic, 0, last.offset, last.offset + 1)
        _, _, value, headers = batch[0]
        record = orjson.loads(value or b"")
        record["after"] |= values
        with TransactionalProducer(capturing.bootstrap, f"forge.{topic}") as producer:
            producer.init()
            producer.begin()
            producer.send(topic, 0, key, orjson.dumps(record), headers)
            producer.ends()
            producer.commit()
        # The frontier tells of it with the next change of the table.
        capturing.execute(*TOUCH[table])
