"""Settings of the servers that do not depend on where they run."""

from __future__ import annotations

POSTGRES = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "password_encryption": "scram-sha-256",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# One broker: one replica of everything, and few partitions of Kafka's own topics.
KAFKA = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # A row can be large; the default of 1 MiB is not enough.
    "message.max.bytes": "16777216",
    "replica.fetch.max.bytes": "16777216",
    "group.initial.rebalance.delay.ms": "0",
    # After kill -9 the controller refuses the broker until its old session has expired.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Without a record twice a second that says nothing, an idle broker takes half of the time.
    "metadata.max.idle.interval.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.cleaner.backoff.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
    "auto.leader.rebalance.enable": "false",
}
