"""kill -9 of apply and of the daemon in the middle of its work: equal, no duplicates."""

import random
import time

import pytest

from tests.support import workload
from tests.support.compare import assert_delta_is_source
from tests.support.pipeline import SOURCE, Pipeline

TABLES = workload.TABLES


@pytest.mark.timeout(900)
def test_apply_killed_in_the_middle_of_a_merge(
    stack, database, topic_prefix, tmp_path, kill_rounds
):
    workload.create(database)
    rng = random.Random(11)
    with Pipeline(tmp_path, stack.bootstrap, database, TABLES, prefix=topic_prefix) as pipeline:
        pipeline.start_capture()
        pipeline.start_apply()

        def revive():
            if not pipeline.running("apply"):
                pipeline.start_apply()

        with workload.Writers(database, writers=2, seed=5, pause=0.005):
            for _ in range(kill_rounds):
                commits = delta_commits(pipeline)
                # Kill between two commits of one pass, at a random moment of a merge.
                pipeline.wait_until(
                    lambda commits=commits: delta_commits(pipeline) > commits, 300, "a commit"
                )
                time.sleep(rng.uniform(0, 2))
                pipeline.kill9("apply")
                pipeline.start_apply()
        pipeline.wait_captured()
        pipeline.wait_applied(TABLES, revive=revive)
        assert pipeline.stop("apply") == 0
        assert_delta_is_source(pipeline, TABLES)


@pytest.mark.timeout(900)
def test_the_daemon_killed_and_started_again(stack, database, topic_prefix, tmp_path, kill_rounds):
    workload.create(database)
    rng = random.Random(12)
    with Pipeline(tmp_path, stack.bootstrap, database, TABLES, prefix=topic_prefix) as pipeline:
        pipeline.start_daemon()
        with workload.Writers(database, writers=2, seed=6, pause=0.005):
            for _ in range(kill_rounds):
                commits = delta_commits(pipeline)
                pipeline.wait_until(
                    lambda commits=commits: delta_commits(pipeline) > commits,
                    300,
                    "a commit",
                    watch="daemon",
                )
                time.sleep(rng.uniform(0, 2))
                pipeline.kill9("daemon")
                pipeline.start_daemon()
        pipeline.wait_captured(watch="daemon")
        pipeline.wait_applied(TABLES)
        assert pipeline.stop("daemon") == 0
        assert_delta_is_source(pipeline, TABLES)


def delta_commits(pipeline):
    return len(list((pipeline.lake / SOURCE).glob("*/*/_delta_log/*.json")))
