"""What is written directly, as Spark reads it; and what stays Spark's."""

import json
from pathlib import Path

import pytest
from pyspark.sql import functions as f

from cdc import codecs
from cdc.errors import LakeError
from cdc.lake import AppId
from spark_jobs.first_commit import write_first_commit
from spark_jobs.layout import Layout, quote
from spark_jobs.replica import create_by_spark
from spark_jobs.session import worker_session
from tests.support.lakes import Lake
from tests.support.loggen import Delete, Insert, LogGen, Update
from tests.support.schemas import all_types_row, all_types_schema, column, table_schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ITEMS = table_schema(
    column(1, "id", codecs.TEXT, not_null=True), ("v", codecs.TEXT), table="it's items"
)

# Every type, keys of other kinds, names that need quotes.
CREATED = (
    all_types_schema(table="everything"),
    table_schema(("a", codecs.INT4), ("b", codecs.TEXT), table="pairs", key=("b", "a")),
    table_schema(("a`b", codecs.DATE), ('x.y"', codecs.TIMESTAMP), table="odd", key=("a`b",)),
    ITEMS,
)


@pytest.fixture
def gen(stack, topic_prefix):
    with LogGen(stack.bootstrap, topic_prefix) as made:
        yield made


def engines(path):
    """Version to who wrote it, of versions with rows."""
    found = {}
    for commit in Path(path, "_delta_log").glob("*.json"):
        for line in commit.read_text().splitlines():
            info = json.loads(line).get("commitInfo")
            if info and info["operation"] in ("WRITE", "MERGE"):
                found[int(commit.stem)] = info["engineInfo"].split(":")[0].split("/")[0]
    return found


def texts(spark, path, names):
    """All rows, each value as Spark's text."""
    frame = worker_session(spark).read.format("delta").load(path)
    columns = [
        f.hex(c) if kind == "binary" else c.cast("string")
        for c, kind in ((f.col(quote(n)), dict(frame.dtypes)[n]) for n in names)
    ]
    return sorted(map(tuple, frame.select(*columns).collect()), key=repr)


def test_spark_reads_every_type_alike(spark, gen, tmp_path):
    everything = all_types_schema(table="everything")
    at = everything.column_names.index("id")
    rows: list[list[object]] = []
    for key in range(4):
        rows.append(all_types_row())
        rows[-1][at] = b"%d" % key
    nulls: list[object] = [None] * len(everything.columns)
    nulls[at] = b"8"
    gen.create([everything])
    gen.load({everything.id: rows})
    lakes = [Lake(spark, gen, tmp_path / "a"), Lake(spark, gen, tmp_path / "b", most_rewritten=0)]
    for lake in lakes:
        lake.apply()
    gen.transaction(
        Update(everything.id, rows[0], [*rows[0][:-1], None]),
        Delete(everything.id, rows[1]),
        Insert(everything.id, nulls),
    )
    for lake in lakes:
        lake.apply()
        lake.assert_same()
    paths = [lake.path(everything.id) for lake in lakes]
    assert [set(engines(path).values()) for path in paths] == [{"delta-rs"}, {"Apache-Spark"}]
    names = lakes[0].replica(everything.id).columns
    direct, by_spark = (texts(spark, path, names) for path in paths)
    assert len(direct) == 4
    assert direct == by_spark


def test_the_upkeep_of_the_log_stays_sparks(spark, gen, tmp_path):
    gen.create([ITEMS])
    gen.load({ITEMS.id: [[b"it's %d" % key, b"0"] for key in range(3)]})
    lake = Lake(spark, gen, tmp_path)
    lake.apply()
    for number in range(11):
        row: list[object] = [b"it's 1", b"%d" % number]
        gen.transaction(Update(ITEMS.id, [b"it's 1", b"%d" % max(0, number - 1)], row))
        lake.apply()
        lake.assert_same()
    path = Path(lake.path(ITEMS.id))
    written = engines(path)
    assert [v for v, who in sorted(written.items()) if who == "Apache-Spark"] == [10]
    assert max(written) == 12
    assert [p.name[:20] for p in path.glob("_delta_log/*.checkpoint*.parquet")] == [f"{10:020}"]
    # The commits before the checkpoint are no longer needed, by either.
    for commit in path.glob("_delta_log/*.json"):
        if int(commit.stem) <= 10:
            commit.unlink()
    lake.assert_same()
    assert lake.replica(ITEMS.id).position == gen.position
    gen.transaction(Delete(ITEMS.id, [b"it's 2", b"0"]))
    lake.apply()
    lake.assert_same()
    names = ["id", "v", "_cdc_lsn"]
    assert len(texts(spark, str(path), names)) == len(gen.rows[ITEMS.id])


def actions(path):
    """Kind to content of the first commit, without what differs from run to run."""
    lines = Path(path, "_delta_log", f"{0:020}.json").read_text().splitlines()
    found = {kind: content for line in lines for kind, content in json.loads(line).items()}
    info, metadata = found["commitInfo"], found["metaData"]
    for name in ("timestamp", "txnId", "engineInfo", "operationParameters"):
        info.pop(name, None)
    del metadata["id"], metadata["createdTime"]
    metadata["schemaString"] = json.loads(metadata["schemaString"])
    for name in ("readerFeatures", "writerFeatures"):
        found["protocol"][name].sort()
    return found


@pytest.mark.parametrize("schema", CREATED, ids=lambda schema: schema.table)
def test_the_empty_table_is_the_one_that_spark_makes(spark, tmp_path, schema):
    layout = Layout(schema, f"shop.{schema.id}")
    app = str(AppId("shop", "topic"))
    direct, by_spark = str(tmp_path / "direct"), str(tmp_path / "spark")
    write_first_commit(direct, layout, app)
    create_by_spark(worker_session(spark), by_spark, layout, app)
    assert actions(direct) == actions(by_spark)
    frames = [spark.read.format("delta").load(path) for path in (direct, by_spark)]
    assert frames[0].schema == frames[1].schema
    assert frames[0].count() == 0
    [created] = spark.sql(f"DESCRIBE HISTORY delta.`{direct}`").collect()
    assert (created.version, created.operation) == (0, "CREATE TABLE")
    with pytest.raises(LakeError) as refused:
        write_first_commit(direct, layout, app)
    assert (refused.value.code, refused.value.table) == ("table_exists", layout.table)
    assert {entry.name for entry in Path(direct, "_delta_log").glob("*")} == {f"{0:020}.json"}
