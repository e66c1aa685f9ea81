"""kill -9 of capture, the broker and Postgres under load: nothing missing, nothing goes back."""

import random
import time

import pytest

from tests.support import workload
from tests.support.compare import assert_log_is_source
from tests.support.pipeline import SOURCE, Pipeline
from tests.support.watch import ConfirmedWatch


@pytest.fixture
def loaded(spare_stack, spare_database, topic_prefix, tmp_path):
    """A pipeline that streams, on servers that may be killed."""
    workload.create(spare_database)
    with Pipeline(
        tmp_path, spare_stack.bootstrap, spare_database, workload.TABLES, prefix=topic_prefix
    ) as pipeline:
        pipeline.start_capture()
        pipeline.wait_captured()
        yield spare_stack, pipeline


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["capture", "broker", "postgres"])
def test_a_kill_under_load_loses_nothing(loaded, victim, kill_rounds):
    stack, pipeline = loaded
    rng = random.Random(f"kill {victim}")
    with ConfirmedWatch(pipeline, f"cdc_test_{SOURCE}") as watch:
        with workload.Writers(pipeline.conninfo, writers=2, seed=3, pause=0.002):
            for _ in range(kill_rounds):
                time.sleep(rng.uniform(0.3, 2.0))
                if victim == "capture":
                    pipeline.kill9("capture")
                elif victim == "broker":
                    stack.kafka.kill9()
                    time.sleep(rng.uniform(0, 1))
                    stack.kafka.start()
                else:
                    stack.postgres.kill9()
                    time.sleep(rng.uniform(0, 0.5))
                    stack.postgres.start()
                revive(pipeline)
        revive(pipeline)
        wait_captured(pipeline)
    watch.assert_held()
    assert pipeline.stop("capture") == 0
    assert_log_is_source(pipeline, workload.TABLES)


def revive(pipeline):
    """What the daemon does: start capture again when it has ended."""
    if not pipeline.running("capture"):
        pipeline.start_capture()


def wait_captured(pipeline, timeout=120):
    """Wait for the log, starting capture again whenever it gives up on a dead server."""
    target = pipeline.source_lsn()

    def captured():
        revive(pipeline)
        view = pipeline.frontier()
        return view is not None and view.record.end_lsn >= target

    pipeline.wait_until(captured, timeout, f"the frontier to reach {target:X}")
