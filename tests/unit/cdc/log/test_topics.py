from cdc.log.topics import control_topic, frontier_topic, table_topic

DAY_MS = 86_400_000


def test_table_topic_is_compacted_after_the_history_window():
    spec = table_topic(
        "shop.public.orders", partitions=3, replication_factor=1, history_ms=7 * DAY_MS
    )
    assert (spec.name, spec.partitions, spec.replication_factor) == ("shop.public.orders", 3, 1)
    assert spec.configs == {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": "604800000",
        "delete.retention.ms": "604800000",
        "message.timestamp.type": "LogAppendTime",
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
    }


def test_table_topic_with_a_limit_of_its_own():
    spec = table_topic(
        "t", partitions=1, replication_factor=1, history_ms=1, max_message_bytes=5_000_000
    )
    assert spec.configs["max.message.bytes"] == "5000000"


def test_control_topic_as_pinned():
    spec = control_topic("shop.__cdc", replication_factor=1)
    assert spec.partitions == 1
    assert spec.configs["cleanup.policy"] == "compact"
    assert spec.configs["segment.ms"] == "600000"
    assert spec.configs["segment.bytes"] == "16777216"
    assert spec.configs["min.compaction.lag.ms"] == "0"
    assert spec.configs["min.cleanable.dirty.ratio"] == "0.1"


def test_frontier_topic_outlives_the_history_by_a_day():
    spec = frontier_topic("shop.__frontier", replication_factor=1, history_ms=7 * DAY_MS)
    assert spec.partitions == 1
    assert spec.configs["cleanup.policy"] == "delete"
    assert spec.configs["retention.ms"] == str(8 * DAY_MS)
    assert spec.configs["retention.bytes"] == "-1"


def test_three_replicas_need_two_in_sync():
    assert control_topic("c", replication_factor=3).configs["min.insync.replicas"] == "2"
