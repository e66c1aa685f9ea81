"""A load of 1,000 small tables: no table costs a process, a connection or a wait of its own."""

import time

import psycopg
import pytest

from snapshots.copier import ChunkCopier
from tests.support.capturing import Capturing

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

TABLES = 1000


def test_many_small_tables(own_stack, topic_prefix):
    stack = own_stack()
    database = stack.postgres.create_database("many")
    tables = [f"t{n:04}" for n in range(TABLES)]
    with psycopg.connect(**database) as connection:
        for table in tables:
            connection.execute(f"create table {table} (id int primary key, v text)")
            connection.execute(f"insert into {table} select i, 'x' from generate_series(1, 3) i")
    source = Capturing(stack.bootstrap, database, topic_prefix, tables, make_copier=ChunkCopier)
    began = time.monotonic()
    with source.running():
        source.wait_ready(400)
        print(f"{TABLES} tables in {time.monotonic() - began:.0f} s")
        source.execute("update t0500 set v = 'y' where id = 2")
        source.caught_up(60)
        assert source.state("t0500")[b'{"id":2}']["v"] == "y"
        assert len(source.state("t0999")) == 3
