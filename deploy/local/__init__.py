"""A real Kafka broker and a real Postgres on this machine, without containers.

``LocalStack`` is what ``cdc local up|down|status`` and ``cdc destroy`` use; ``PostgresServer``
and ``KafkaBroker`` are the single servers, which tests kill, pause and start again.
"""
