"""``cdc rebuild`` where no daemon runs: it takes the lake's lock and does the work itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cdc import codecs
from cdc.jvm import SHORT_LIVED_JVM
from cdc.lakelock import LOCK_NAME, hold_lake_lock, lock_holder
from cdc.unsent import UNSENT
from tests.support.lakes import Lake
from tests.support.loggen import Delete, Insert, LogGen, Update
from tests.support.schemas import column, table_schema

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ITEMS = table_schema(
    column(1, "id", codecs.INT4, not_null=True), ("t", codecs.TEXT), ("n", codecs.NUMERIC)
)
NAME = "shop.public.orders"


class Project:
    """A cdc.yaml over a made-up log: the source that it names does not exist."""

    def __init__(self, folder, gen):
        self.folder = folder
        self.lake = folder / "lake"
        (folder / "cdc.yaml").write_text(
            f"""\
project: test
log: {{bootstrap_servers: "{gen.bootstrap}", topic_prefix: "{gen.prefix}"}}
spark: {{master: "local[2]", driver_memory: 1g,
        conf: {{spark.driver.extraJavaOptions: "{" ".join(SHORT_LIVED_JVM)}"}}}}
sources:
  shop: {{kind: postgres, host: 127.0.0.1, port: 1, database: shop, user: nobody,
          tables: [public.orders]}}
"""
        )

    def cli(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "cdc.cli.main", *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def recorded_jvm(self):
        return json.loads((self.lake / LOCK_NAME).read_text())["jvm"]


@pytest.fixture
def gen(stack, topic_prefix):
    with LogGen(stack.bootstrap, topic_prefix) as gen:
        gen.create([ITEMS], partitions=2)
        gen.load({ITEMS.id: [[b"%d" % i, b"one", b"1.0"] for i in range(50)]})
        yield gen


@pytest.fixture
def project(gen, tmp_path):
    return Project(tmp_path, gen)


@pytest.mark.full
def test_it_folds_the_log_and_swaps_the_table(spark, gen, project):
    lake = Lake(spark, gen, project.lake)
    lake.apply()
    gen.transaction(
        Update(ITEMS.id, [b"1", b"one", b"1.0"], [b"1", b"two", UNSENT]),
        Delete(ITEMS.id, [b"3", b"one", b"1.0"]),
        Insert(ITEMS.id, [b"77", b"new", None]),
    )
    old = lake.replica(ITEMS.id)
    done = project.cli("rebuild", NAME, "--from-offset", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{NAME} has been rebuilt: table {NAME}")
    steps = [line.split(",")[0].strip() for line in done.stderr.splitlines() if "step" in line]
    assert steps == [
        "step starting Spark",
        "step folding the log",
        "step writing the new table",
        "step swapping",
    ]
    new = lake.replica(ITEMS.id)
    assert (new.version, new.app.generation) == (old.version + 1, 2)
    assert new.position == gen.position
    lake.assert_same()
    assert not list(Path(new.path).glob("_g*"))
    # It leaves nothing behind that holds the lake, neither itself nor its JVM.
    assert lock_holder(project.lake) is None
    assert project.recorded_jvm()["pid"] > 0
    gen.transaction(Insert(ITEMS.id, [b"78", b"later", None]))
    with hold_lake_lock(project.lake, jvm_timeout=20):
        lake.apply()
    lake.assert_same()


def test_it_waits_for_nobody(gen, project):
    with hold_lake_lock(project.lake):
        done = project.cli("rebuild", NAME, "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "lake_locked"
    assert "stop it" in error["remedy"]
    # Refused before Spark has started.
    assert "jvm" not in json.loads((project.lake / LOCK_NAME).read_text())


def test_a_table_that_cdc_yaml_does_not_name(gen, project):
    done = project.cli("rebuild", "shop.public.order", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["remedy"]) == ("unknown_table", f"one of {NAME}")
    assert not project.lake.exists()
