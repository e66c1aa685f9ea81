"""A server that is killed under a load: a named error, and nothing left running."""

import psutil
import psycopg
import pytest

from cdc.errors import CdcError
from snapshots.load import run_exported_load
from tests.support.export import exported, load_request

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("server", "codes"),
    [
        ("postgres", {"connection_lost", "server_stopping", "source_error"}),
        ("kafka", {"kafka_timeout", "kafka_unreachable", "transaction_aborted", "commit_unknown"}),
    ],
)
def test_a_killed_server_fails_the_load(own_stack, topic_prefix, server, codes):
    stack = own_stack()
    conninfo = stack.postgres.create_database("load")
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        connection.execute("create table big (id bigint primary key, note text)")
        connection.execute(
            "insert into big select i, repeat('x', 90) from generate_series(1, 200000) i"
        )
    killed: list[int] = []

    def kill(progress):
        if progress.rows and not killed:
            getattr(stack, server).kill9()
            killed.append(progress.rows)

    with exported(conninfo) as export:
        request = load_request(export, stack.bootstrap, topic_prefix, ["big"])
        with pytest.raises(CdcError) as failed:
            run_exported_load(request, kill, range_bytes=256 * 1024)
        assert killed[0] < 200_000
        assert failed.value.code in codes
        assert not [p for p in psutil.Process().children() if "snapshots.worker" in p.cmdline()]
        getattr(stack, server).start()
        if server == "kafka":
            (rows,) = run_exported_load(request, lambda _: None).rows.values()
            assert rows == 200_000
