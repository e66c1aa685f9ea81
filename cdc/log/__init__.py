"""All Kafka I/O of the platform: topics, the transactional producer and the reader.

Clients of librdkafka do not survive ``fork``: make them in the process that uses them.
"""
