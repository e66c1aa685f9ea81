import time

import pytest

from cdc.errors import EnvironmentProblem, LogError
from cdc.log.admin import LogAdmin
from cdc.log.producer import TransactionalProducer
from cdc.log.topics import control_topic, frontier_topic, table_topic

HOUR_MS = 3_600_000


@pytest.fixture
def admin(stack):
    return LogAdmin(stack.bootstrap)


def table(name, partitions=2):
    return table_topic(name, partitions=partitions, replication_factor=1, history_ms=HOUR_MS)


def test_topics_are_made_as_asked_and_can_be_written_at_once(admin, stack, topic_prefix):
    specs = [
        table(f"{topic_prefix}shop.public.a", partitions=3),
        control_topic(f"{topic_prefix}shop.__cdc", replication_factor=1),
        frontier_topic(f"{topic_prefix}shop.__frontier", replication_factor=1, history_ms=HOUR_MS),
    ]
    infos = admin.create_topics(specs)
    assert set(infos) == {s.name for s in specs}
    for spec in specs:
        info = admin.describe(spec.name)
        assert info == infos[spec.name]
        assert info.partitions == spec.partitions
        assert spec.configs.items() <= info.configs.items()
        assert info.cleanup_policy == spec.configs["cleanup.policy"]
        assert info.max_message_bytes > 1_000_000
    assert len({i.topic_id for i in infos.values()}) == 3
    assert admin.topic_ids([s.name for s in specs] + ["nope"]) == {
        i.name: (i.topic_id, i.partitions) for i in infos.values()
    }
    with TransactionalProducer(stack.bootstrap, topic_prefix) as producer:
        producer.init()
        producer.begin()
        assert producer.send_reported(specs[0].name, 2, b"k", b"v") == 1
        producer.commit()


def test_an_existing_topic_is_an_error_unless_accepted(admin, topic_prefix):
    name = f"{topic_prefix}a"
    made = admin.create_topics([table(name)])
    with pytest.raises(LogError) as caught:
        admin.create_topics([table(name)])
    assert caught.value.code == "topic_exists"
    assert name in caught.value.message
    assert admin.create_topics([table(name)], accept_existing=True) == made
    with pytest.raises(LogError) as caught:
        admin.create_topics([table(name, partitions=3)], accept_existing=True)
    assert caught.value.code == "topic_differs"
    with pytest.raises(LogError) as caught:
        spec = frontier_topic(name, replication_factor=1, history_ms=1)
        admin.create_topics([spec], accept_existing=True)
    assert caught.value.code == "topic_differs"


def test_names_that_kafka_takes_for_the_same_are_refused_by_name(admin, topic_prefix):
    admin.create_topics([table(f"{topic_prefix}a.b")])
    with pytest.raises(LogError) as caught:
        admin.create_topics([table(f"{topic_prefix}a_b")])
    assert caught.value.code == "topic_collision"
    assert f"{topic_prefix}a_b" in caught.value.message
    with pytest.raises(LogError) as caught:
        admin.create_topics([table(f"{topic_prefix}a/b")])
    assert caught.value.code == "topic_invalid"


def test_what_the_cluster_cannot_give_is_an_environment_problem(admin, topic_prefix):
    spec = table_topic(f"{topic_prefix}a", partitions=1, replication_factor=5, history_ms=1)
    with pytest.raises(EnvironmentProblem) as caught:
        admin.create_topics([spec])
    assert caught.value.code == "topic_refused"


def test_a_deleted_topic_is_gone_and_its_successor_has_another_id(admin, topic_prefix):
    name = f"{topic_prefix}a"
    before = admin.create_topics([table(name)])[name]
    admin.delete_topics([name, f"{topic_prefix}never"])
    assert not admin.exists(name)
    with pytest.raises(LogError) as caught:
        admin.describe(name)
    assert caught.value.code == "topic_missing"
    after = admin.create_topics([table(name)])[name]
    assert admin.exists(name)
    assert after.topic_id != before.topic_id


def test_offsets_tell_an_open_transaction_from_a_committed_one(admin, stack, topic_prefix):
    name = f"{topic_prefix}a"
    admin.create_topics([table(name)])
    assert admin.offsets(name) == {0: (0, 0, 0), 1: (0, 0, 0)}
    with TransactionalProducer(stack.bootstrap, topic_prefix) as producer:
        producer.init()
        producer.begin()
        for i in range(5):
            producer.send(name, 0, b"%d" % i, b"v", None)
        producer.ends()
        assert admin.offsets(name) == {0: (0, 0, 5), 1: (0, 0, 0)}
        producer.commit()
        # The marker is written after the commit was answered.
        deadline = time.monotonic() + 20
        while admin.offsets(name)[0].last_stable < 6 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert admin.offsets(name) == {0: (0, 6, 6), 1: (0, 0, 0)}
    with pytest.raises(LogError) as caught:
        admin.offsets(f"{topic_prefix}never")
    assert caught.value.code == "topic_missing"


def test_no_broker_is_an_environment_problem_with_its_address(unused_port):
    admin = LogAdmin(f"127.0.0.1:{unused_port}", timeout=1)
    with pytest.raises(EnvironmentProblem) as caught:
        admin.exists("a")
    assert caught.value.code == "kafka_unreachable"
    assert f"127.0.0.1:{unused_port}" in caught.value.message


@pytest.fixture
def unused_port():
    from deploy.local.ports import choose_port

    return choose_port()
