"""``cdc verify`` over a whole pipeline: while it runs, and of a file that is not as it was."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.names import TableId, lake_folder
from tests.support import workload
from tests.support.pipeline import SOURCE, Pipeline

#: Of the workload's, so that apply has not so much to do: all types, a key of two columns, large
#: values, truncates, no key.
NAMES = ("items", "pairs", "docs", "logs", "clicks", "accounts_a")
TABLES = tuple(TableId("public", name) for name in NAMES)


@pytest.mark.timeout(900)
def test_verify_while_writers_write_and_after_a_file_was_changed(stack, tmp_path):
    conninfo = stack.postgres.create_database("verified")
    workload.create(conninfo)
    with Pipeline(tmp_path, stack.bootstrap, conninfo, TABLES, prefix="verify.") as pipeline:
        pipeline.start_daemon()
        pipeline.wait_captured(watch="daemon", timeout=120)
        seen = set()
        with workload.Writers(conninfo, writers=2, seed=4, pause=0.005):
            for _ in range(3):
                tables = verified(pipeline)
                # They truncate it now and then, which no snapshot survives.
                if (logs := tables["logs"])["outcome"] == "refused":
                    assert logs["error"]["code"] == "table_altered"
                    del tables["logs"]
                assert {table["outcome"] for table in tables.values()} == {"equal"}
                positions = {table["position"] for table in tables.values()}
                assert len(positions) == 1
                seen |= positions
        assert len(seen) == 3
        pipeline.wait_captured(watch="daemon")
        pipeline.wait_applied(TABLES)
        for table in verified(pipeline, "--replica").values():
            assert table["outcome"] == "equal", table
            assert table["replica_position"] and not table["tail_keys"]
        id = change_a_balance(pipeline)
        accounts = verified(pipeline, "--replica")["accounts_a"]
        assert accounts["differences"] == [
            {"kind": "different", "key": {"id": id}, "columns": ["balance"]}
        ]
        assert pipeline.stop("daemon") == 0
    stack.postgres.drop_database("verified")


def verified(pipeline, *options):
    """Table to its result."""
    done = pipeline.cli("verify", "--json", *options, check=False)
    tables = json.loads(done.stdout)["result"]["tables"]
    assert len(tables) == len(TABLES)
    equal = all(table["outcome"] == "equal" for table in tables)
    assert done.returncode == (0 if equal else 1), done.stdout + done.stderr
    return {table["table"].split(".")[-1]: table for table in tables}


def change_a_balance(pipeline):
    """Change one row of a file that Spark wrote, in place; its id."""
    table = DeltaTable(lake_folder(str(pipeline.lake), SOURCE, "public", "accounts_a"))
    found = QueryBuilder().register("t", table).execute("select id, _cdc_lsn from t")
    held = {row["id"]: row["_cdc_lsn"] for row in pa.table(found.read_all()).to_pylist()}
    for uri in table.file_uris():
        path = Path(uri.removeprefix("file://"))
        rows = pq.read_table(path, partitioning=None)
        for number, row in enumerate(rows.to_pylist()):
            # A row that a deletion vector voids is older than what counts.
            if held[row["id"]] == row["_cdc_lsn"]:
                balances = rows["balance"].to_pylist()
                balances[number] += 1
                index = rows.schema.get_field_index("balance")
                field = rows.schema.field(index)
                pq.write_table(rows.set_column(index, field, [balances]), path)
                return row["id"]
    raise AssertionError("the replica has no row")
