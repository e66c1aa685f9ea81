"""A load longer than the server's patience: a slot that waited for its end would be lost."""

import time

import psycopg
import pytest

from cdc.states import DONE
from tests.support.compare import assert_log_is_source
from tests.support.loading import BIG, Loading, create_big

#: The least that fits with segments of 16 MB and a checkpoint every second or two.
KEPT_MB = 64
ROWS = 16_000
#: WAL that is written during the load.
WRITTEN_MB = 4 * KEPT_MB


@pytest.fixture
def server(spare_database):
    """A session on a server on which slots may keep little."""
    with psycopg.connect(**spare_database, autocommit=True) as connection:
        connection.execute(f"alter system set max_slot_wal_keep_size = '{KEPT_MB}MB'")
        connection.execute("select pg_reload_conf()")
        yield connection
        connection.execute("alter system reset max_slot_wal_keep_size")
        connection.execute("select pg_reload_conf()")


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_load_outlasts_the_wal_that_a_slot_may_keep(
    spare_stack, spare_database, server, topic_prefix, tmp_path
):
    create_big(spare_database, ROWS)
    server.execute("alter table big alter note set storage external")
    with Loading(
        tmp_path,
        spare_stack.bootstrap,
        spare_database,
        [BIG],
        prefix=topic_prefix,
        rows_per_second=500,
    ) as pipeline:
        pipeline.start_capture()
        pipeline.wait_chunks(0, revive=False)
        written = write(server, pipeline)
        load = pipeline.load()
        # What counts was written while chunks were copied.
        assert load.state != DONE, "the writes took too long"
        assert written >= WRITTEN_MB * 2**20
        pipeline.wait_captured(120)
        assert pipeline.stop("capture") == 0
        load = pipeline.load()
        assert (load.load, load.state) == (1, DONE)
        (slot,) = server.execute("select wal_status from pg_replication_slots").fetchall()
        assert slot[0] != "lost"
        assert_log_is_source(pipeline, [BIG])


def write(connection, pipeline):
    """Change rows all over the table, in step with the disk; returns the bytes of WAL."""

    def position():
        return connection.execute("select pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()[0]

    start, at, number = position(), 0.0, 0
    while (written := position() - start) < WRITTEN_MB * 2**20:
        number += 1
        # Values that do not compress, out of line: bytes of WAL, not work for capture.
        connection.execute(
            "update big set n = n + 1, note = (select string_agg(md5(i::text || random()), '')"
            " from generate_series(1, 250) i) where id %% 200 = %s",
            (number % 200,),
        )
        assert pipeline.running("capture"), pipeline.output("capture")[-2000:]
        if time.monotonic() - at > 1.5:
            at = time.monotonic()
            # Only here does the server give up slots, and lets them go on.
            connection.execute("checkpoint")
            (status,) = connection.execute("select wal_status from pg_replication_slots").fetchone()
            assert status != "lost", f"after {written >> 20} MB of WAL"
        time.sleep(0.03)
    return written
