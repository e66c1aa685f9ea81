"""Capture as a process, killed at each border of what is durable, and started again."""

import signal

import psycopg
import pytest

from cdc.failpoints import VARIABLE
from cdc.frontier import FrontierRecord
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.names import TableId
from cdc.position import parse_lsn
from cdc.states import ABANDONED, ADDED, CATCHING_UP, DONE, READY, SNAPSHOTTING
from tests.support.compare import assert_log_is_source
from tests.support.pipeline import SOURCE, Pipeline

ORDERS = TableId("public", "orders")


@pytest.fixture
def pipeline(stack, database, topic_prefix, tmp_path):
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute("create table orders (id int primary key, v text)")
        connection.execute("insert into orders select i, 'loaded' from generate_series(1, 100) i")
    with Pipeline(
        tmp_path, stack.bootstrap, database, [ORDERS], prefix=topic_prefix, partitions=2
    ) as pipeline:
        yield pipeline


def dies_at(pipeline, point):
    pipeline.start_capture(env={VARIABLE: point})
    assert pipeline.wait_exit("capture") == -signal.SIGKILL, pipeline.output("capture")


def execute(pipeline, *statements):
    with psycopg.connect(**pipeline.conninfo, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def query(pipeline, text):
    with psycopg.connect(**pipeline.conninfo, autocommit=True) as connection:
        return connection.execute(text).fetchall()


def control(pipeline):
    with LogReader(pipeline.bootstrap, topic_prefix=pipeline.prefix) as reader:
        return reader.control_state(SOURCE)


def frontiers(pipeline) -> list[FrontierRecord]:
    with LogReader(pipeline.bootstrap, topic_prefix=pipeline.prefix) as reader:
        return [record for _, record in reader.frontier_history(SOURCE)]


def test_a_first_start_that_dies_anywhere_begins_anew_and_leaves_nothing(pipeline):
    points = ["after_intent", "after_publication", "after_slot_created", "before_kafka_commit"]
    for point in points:
        dies_at(pipeline, point)
    state = control(pipeline)
    assert pipeline.frontier() is None
    assert len(state.loads) == len(points)
    pipeline.start_capture()
    pipeline.wait_captured()
    assert "an unfinished load was found" in pipeline.output("capture")
    assert pipeline.stop("capture") == 0
    state = control(pipeline)
    states = [state.loads[ORDERS, n].state for n in range(1, len(points) + 2)]
    assert states == [ABANDONED] * len(points) + [DONE]
    assert_nothing_is_left_over(pipeline)


def test_a_load_that_dies_in_any_state_goes_on_where_it_was(pipeline):
    points = [
        ("after_first_frontier", ADDED),
        ("after_topics", ADDED),
        ("before_spooling", ADDED),
        ("after_spooling", SNAPSHOTTING),
        # Depends on whether something else was committed in between.
        ("before_replay", (SNAPSHOTTING, CATCHING_UP)),
        ("after_replay_step", CATCHING_UP),
        ("before_ready", CATCHING_UP),
        ("after_ready", READY),
    ]
    for i, (point, state) in enumerate(points):
        dies_at(pipeline, point)
        states = state if isinstance(state, tuple) else (state,)
        assert control(pipeline).tables[ORDERS].state in states, point
        execute(
            pipeline,
            f"insert into orders values ({1000 + i}, 'a')",
            f"update orders set v = '{point}' where id <= 10",
            f"update orders set id = {2000 + i} where id = {20 + i}",
            f"delete from orders where id = {30 + i}",
        )
    pipeline.start_capture()
    pipeline.wait_captured()
    assert pipeline.stop("capture") == 0
    assert [load.state for load in control(pipeline).loads.values()] == [DONE]
    assert_nothing_is_left_over(pipeline)


def assert_nothing_is_left_over(pipeline):
    state = control(pipeline)
    assert state.loads[ORDERS, state.tables[ORDERS].load].rows == 100
    slots = query(
        pipeline,
        "select slot_name from pg_replication_slots where database = current_database()",
    )
    assert len(slots) == 1
    topics = [t for load in state.loads.values() for t in (load.topic, load.spool) if t]
    assert list(LogAdmin(pipeline.bootstrap).topic_ids(topics)) == [state.tables[ORDERS].topic]
    assert_log_is_source(pipeline, [ORDERS])


def test_streaming_that_dies_anywhere_loses_nothing_and_never_goes_back(pipeline):
    pipeline.start_capture()
    pipeline.wait_captured()
    pipeline.kill9("capture")
    points = ["before_kafka_commit", "after_kafka_commit_before_feedback"]
    for i, point in enumerate(points, 1):
        execute(
            pipeline,
            f"insert into orders values ({1000 + i}, 'a')",
            f"update orders set v = '{point}' where id <= 10",
            f"update orders set id = {2000 + i} where id = {20 + i}",
            f"delete from orders where id = {30 + i}",
        )
        before = frontiers(pipeline)
        dies_at(pipeline, point)
        after = frontiers(pipeline)
        assert len(after) - len(before) == (1 if point == points[1] else 0)
        (row,) = query(
            pipeline,
            "select confirmed_flush_lsn::text from pg_replication_slots"
            " where database = current_database()",
        )
        assert parse_lsn(row[0]) <= after[-1].end_lsn
    pipeline.start_capture()
    pipeline.wait_captured()
    assert pipeline.stop("capture") == 0
    positions = [record.position for record in frontiers(pipeline)]
    assert positions == sorted(positions)
    assert_log_is_source(pipeline, [ORDERS])
    with LogReader(pipeline.bootstrap, topic_prefix=pipeline.prefix) as reader:
        view = reader.frontier(SOURCE)
        assert view is not None
        topic = control(pipeline).tables[ORDERS].topic
        seen = [
            (r.position, r.key, r.op)
            for partition, end in view.ends[topic].items()
            for r in reader.records(topic, partition, 0, end)
        ]
    # The second point's transactions were in the log already, and were dropped.
    assert len(seen) == len(set(seen))
    assert_log_is_source(pipeline, [ORDERS])


def test_a_large_transaction_that_dies_after_a_part_is_whole_at_the_end(pipeline):
    pipeline.start_capture()
    pipeline.wait_captured()
    assert pipeline.stop("capture") == 0
    frontier = pipeline.frontier().position
    with psycopg.connect(**pipeline.conninfo) as connection:
        connection.execute("insert into orders select i, 'x' from generate_series(1000, 70000) i")
        connection.execute("update orders set v = 'y' where id % 10 = 0")
    dies_at(pipeline, "after_part_commit")
    # The part is committed in Kafka, and below no frontier.
    assert pipeline.frontier().position == frontier
    with LogReader(pipeline.bootstrap, topic_prefix=pipeline.prefix) as reader:
        topic = control(pipeline).tables[ORDERS].topic
        stable = reader.bounds(topic, 0).last_stable
        assert stable > pipeline.frontier().ends[topic][0] + 10_000
    pipeline.start_capture()
    pipeline.wait_captured()
    assert pipeline.stop("capture") == 0
    with_rows = [f for f in frontiers(pipeline) if f.position > frontier and f.last is not None]
    assert len(with_rows) == 1
    assert_log_is_source(pipeline, [ORDERS])
