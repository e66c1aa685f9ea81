"""Forces the broker to compact topics, and looks at what is left of them."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from cdc.log.reader import LogReader

#: Every part of a topic but the one that is written to may be compacted, at once.
HASTY = {
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.0",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
}


def hasten(bootstrap, topics):
    """Let the broker compact topics at once."""
    resources = [
        ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in HASTY.items()
            ],
        )
        for topic in topics
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs(resources).values():
        future.result(30)


class Log:
    """What is in the one partition of topics now."""

    def __init__(self, source):
        self._source = source

    def there(self, topic):
        """Offset to key and value."""
        prefix = self._source.settings.topic_prefix
        with LogReader(self._source.bootstrap, topic_prefix=prefix) as reader:
            end = reader.bounds(topic).last_stable
            return {
                offset: (key, value)
                for batch in reader.raw_records(topic, 0, 0, end)
                for offset, key, value, _ in batch
            }

    def superseded(self, topic):
        """Offset to key and value of records behind which another of their key came."""
        found = self.there(topic)
        newest = {key: offset for offset, (key, _) in found.items()}
        return {offset: record for offset, record in found.items() if newest[record[0]] != offset}

    def wait_removed(self, topic, offsets, keep_writing):
        """Until the cleaner has taken all these records; only writes let it begin."""

        def gone():
            keep_writing()
            return not offsets & self.there(topic).keys()

        assert offsets
        self._source.wait_until(gone, 90, f"{len(offsets)} records of {topic} to be compacted")
