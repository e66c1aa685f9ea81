"""A worker's memory stays bounded, whatever the rows."""

from contextlib import closing

import psycopg
import pytest

from snapshots.copier import ChunkCopier
from tests.support.copying import records_of, worker_processes
from tests.support.export import copy_settings, copy_until, load_tasks
from tests.support.usage import peak_bytes

LINES = 363_000
MOST_BYTES = 200_000_000


@pytest.mark.timeout(120)
def test_rows_of_12_megabytes(stack, database, topic_prefix):
    """Whose newlines are escaped by COPY and again by JSON."""
    with psycopg.connect(**database, autocommit=True) as connection:
        connection.execute("create table large (id int primary key, note text)")
        # Stored as it is: compressing it would take longer than all the rest.
        connection.execute("alter table large alter note set storage external")
        connection.execute(
            "insert into large select id, string_agg(md5((n + id)::text), E'\\n')"
            f" from generate_series(1, 3) id, generate_series(1, {LINES}) n group by id"
        )
        (task,) = load_tasks(
            connection, stack.bootstrap, topic_prefix, ["large"], max_message_bytes=16 * 2**20
        )
    peaks: list[int] = []
    with closing(ChunkCopier(copy_settings(stack.bootstrap, database, workers=1))) as copier:

        def looked(copied):
            peaks.extend(peak_bytes(process.pid) for process in worker_processes())
            return not copier.busy

        copier.begin(task)
        copied = copy_until(copier, looked)
    assert copied.total(task) == 3
    for record in records_of(stack.bootstrap, task):
        assert len(record.after["note"]) == 33 * LINES - 1
        assert record.after["note"].count("\n") == LINES - 1
    assert 0 < max(peaks) < MOST_BYTES
