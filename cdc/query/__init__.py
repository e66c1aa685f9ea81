"""``cdc query``: one SELECT over replicas and the log's tail, at one frontier per source.

No JVM and no daemon: DuckDB reads the replicas' files, the tail comes from Kafka.
"""
