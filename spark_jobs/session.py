"""The Spark session of apply and rebuild, with every setting that correct results rest on."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from cdc.jars import jar_paths

#: Delta takes a commit's own account of the table's files for right in this zone only; in any
#: other it reads the whole log again after every commit.
_ZONE: Final = "-Duser.timezone=UTC"

#: ``extraJavaOptions`` are left to the user.
_JAVA_OPTIONS: Final = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")

#: With so little, Spark is done before the code that it would compile for it.
_FEW_ROWS: Final = 500
_FEW_BYTES: Final = 128 * 2**20
_SMALL_CONF: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_STATIC = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def build_session(
    master: str,
    driver_memory: str,
    conf: Mapping[str, str],
    jars: Sequence[Path] | None = None,
) -> SparkSession:
    """Start Spark (8 to 10 s), or return the session of this process if there is one.

    Args:
        master: ``local[2]``, ``spark://…``.
        driver_memory: Java's form, ``2g``.
        conf: Settings of cdc.yaml; they do not override those that results rest on.
        jars: Delta and the Kafka source; by default those of the cache.

    Raises:
        EnvironmentProblem: ``jars_missing``.
    """
    paths = jar_paths("spark") if jars is None else jars
    builder = SparkSession.builder.master(master).appName("cdc")
    settings = {
        # Spark logs the errors that we handle, with what they quote.
        "spark.log.level": "FATAL",
        **conf,
        "spark.driver.memory": driver_memory,
        **{name: f"{conf.get(name, '')} {_ZONE}".strip() for name in _JAVA_OPTIONS},
        "spark.jars": ",".join(str(path) for path in paths),
        # Never used, but made by Spark in the current folder when not told otherwise.
        "spark.sql.warehouse.dir": str(_warehouse()),
        **_STATIC,
    }
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    atexit.register(_remove_warehouse)
    _set_runtime(session)
    return session


def worker_session(spark: SparkSession) -> SparkSession:
    """A session of a thread's own: settings of a shared one race between threads."""
    session = spark.newSession()
    _set_runtime(session)
    return session


@contextmanager
def configured(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings for what is run inside; afterwards they are as before.

    Args:
        session: A worker session, the calling thread's own.
        settings: Name to value.

    Raises:
        py4j.protocol.Py4JError: Spark is gone.
    """
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, held in before.items():
            if held is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, held)


def planned_for(
    session: SparkSession, rows: int, held_bytes: int = 0
) -> AbstractContextManager[None]:
    """Have Spark plan for the size of what is run inside.

    Little work, and Delta's own around it, is interpreted, and planned once: a third less time
    for a commit of some rows that is the first of its session. In a session that is kept it
    gains some hundredths at the most.

    Args:
        session: As for ``configured``, which tells what this raises.
        rows: That a batch writes.
        held_bytes: Of the files that Spark may have to look into.
    """
    little = rows <= _FEW_ROWS and held_bytes <= _FEW_BYTES
    return configured(session, _SMALL_CONF if little else {})


def jvm_pid(spark: SparkSession) -> int:
    """Process id of the driver's JVM."""
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001


def _warehouse() -> Path:
    return Path(tempfile.gettempdir()) / f"cdc-warehouse-{os.getuid()}"


def _remove_warehouse() -> None:
    # Nothing is ever in it; if there is, it is not ours to delete.
    with suppress(OSError):
        _warehouse().rmdir()


def _set_runtime(session: SparkSession) -> None:
    parallelism = max(1, session.sparkContext.defaultParallelism)
    cores = str(parallelism)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # Of a record's fields; names of replicas' columns differ by more than that.
        "spark.sql.caseSensitive": "true",
        # A key's value that looks like ${a.variable} is a value.
        "spark.sql.variable.substitute": "false",
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.adaptive.enabled": "true",
        # A merge joins a batch with the whole table: it needs no sort of the table for that
        # where the batch fits into memory as it is.
        "spark.sql.join.preferSortMergeJoin": "false",
        "spark.sql.autoBroadcastJoinThreshold": "64m",
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": cores,
        # Dates before 1582 as they are; INT96 has no statistics and no time zone.
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.json.enableExactStringParsing": "true",
        # Every commit reads its table's log: of 20,000 files one task does it as quickly as two,
        # and each task more is felt in a small batch.
        "spark.databricks.delta.snapshotPartitions": str(max(1, parallelism // 4)),
        "spark.databricks.delta.schema.autoMerge.enabled": "false",
        "spark.databricks.delta.optimizeWrite.enabled": "false",
        "spark.databricks.delta.autoCompact.enabled": "false",
        # A merge reads its source twice; this keeps the two alike.
        "spark.databricks.delta.merge.materializeSource": "auto",
    }
    for name, value in settings.items():
        session.conf.set(name, value)
