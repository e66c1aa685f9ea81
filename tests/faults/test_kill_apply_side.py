"""kill -9 of apply and of the daemon in the middle of its work: equal, no duplicates.

Killed inside of a MERGE and at random moments in turn.
"""

import os
import random
import signal
import time
from contextlib import ExitStack

import pytest

from cdc.names import TableId
from tests.support import merging, workload
from tests.support.compare import assert_delta_is_source
from tests.support.pipeline import SOURCE, Pipeline

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

#: One for each way of writing, and one without a key; other kinds are in test_whole_pipeline.
TABLES = (merging.BULK, *(TableId("public", name) for name in ("items", "clicks", "docs", "logs")))
#: A pass over few tables, where what is tested is who ends, not what is written.
FEW = TABLES[:2]


@pytest.fixture
def started(stack, database, topic_prefix, tmp_path):
    """A pipeline over some tables of the workload."""
    workload.create(database)
    merging.create(database)
    with ExitStack() as cleanup:

        def start(tables):
            made = Pipeline(tmp_path, stack.bootstrap, database, tables, prefix=topic_prefix)
            return cleanup.enter_context(made)

        yield start


def test_apply_killed_in_the_middle_of_a_merge(started, kill_rounds):
    pipeline, rng = started(TABLES), random.Random(11)
    pipeline.start_capture()
    pipeline.start_apply()

    def revive():
        if not pipeline.running("apply"):
            pipeline.start_apply()

    with workload.Writers(pipeline.conninfo, writers=2, seed=5, pause=0.1):
        for number in range(kill_rounds):
            if number % 2 == 0:
                jvm = merging.freeze(pipeline)
                os.kill(jvm, signal.SIGKILL)
            else:
                some_moment(pipeline, rng, "apply")
            pipeline.kill9("apply")
            pipeline.start_apply()
    pipeline.wait_captured()
    pipeline.wait_applied(TABLES, revive=revive)
    assert pipeline.stop("apply") == 0
    assert "MERGE" in merging.operations(pipeline)
    assert_delta_is_source(pipeline, TABLES)


def test_the_daemon_killed_and_started_again(started, kill_rounds):
    pipeline, rng = started(FEW), random.Random(12)
    pipeline.start_daemon()
    with workload.Writers(pipeline.conninfo, writers=2, seed=6, pause=0.1):
        for number in range(kill_rounds):
            if number % 2 == 0:
                jvm = merging.freeze(pipeline)
                pipeline.kill9("daemon")
                # Left to itself, it may end or commit: the next apply has to wait for it.
                os.kill(jvm, signal.SIGCONT)
            else:
                some_moment(pipeline, rng, "daemon")
                pipeline.kill9("daemon")
            pipeline.start_daemon()
    pipeline.wait_captured(watch="daemon")
    pipeline.wait_applied(FEW)
    assert pipeline.stop("daemon") == 0
    assert "MERGE" in merging.operations(pipeline)
    assert_delta_is_source(pipeline, FEW)


def some_moment(pipeline, rng, watch):
    """Return between two commits of one pass, at a random moment of a table's batch."""
    before = delta_commits(pipeline)
    pipeline.wait_until(lambda: delta_commits(pipeline) > before, 300, "a commit", watch=watch)
    time.sleep(rng.uniform(0, 2))


def delta_commits(pipeline):
    return len(list((pipeline.lake / SOURCE).glob("*/*/_delta_log/*.json")))
