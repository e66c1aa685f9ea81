"""Snapshot and 10,000 mixed changes by concurrent writers: the log, folded, is Postgres."""

from tests.support import workload
from tests.support.compare import assert_log_is_source
from tests.support.pipeline import SOURCE, Pipeline
from tests.support.watch import ConfirmedWatch


def test_the_log_folded_is_postgres(stack, database, topic_prefix, tmp_path):
    workload.create(database)
    tables = workload.TABLES
    with Pipeline(
        tmp_path, stack.bootstrap, database, tables, prefix=topic_prefix, partitions=2
    ) as pipeline:
        # Writers are at it while the snapshot is taken.
        with workload.Writers(database, writers=3, seed=7, changes=2_000, pause=0.005) as writers:
            pipeline.start_capture()
            pipeline.wait_until(lambda: pipeline.frontier() is not None, 60, "the load", "capture")
            writers.join()
        with ConfirmedWatch(pipeline, f"cdc_test_{SOURCE}") as watch:
            workload.run(database, changes=8_000, writers=3, seed=8)
            pipeline.wait_captured()
        watch.assert_held()
        assert pipeline.stop("capture") == 0
        assert_log_is_source(pipeline, workload.TABLES)
