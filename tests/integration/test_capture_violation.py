"""A server, or what stands before it, that sends what is not the protocol."""

import pytest

from cdc.errors import SourceStopped
from cdc.position import parse_lsn
from cdc.states import ERRORED
from connectors.postgres.client import ReplicationClient
from tests.integration.test_capture import ORDERS, TABLE, in_log
from tests.support.capturing import Capturing

SIGN = b"poison"


@pytest.fixture
def bent(monkeypatch):
    """Every message with the sign in it loses its last byte on the way."""
    read = ReplicationClient.read

    def read_bent(client, timeout):
        return [data[:-1] if SIGN in data else data for data in read(client, timeout)]

    monkeypatch.setattr(ReplicationClient, "read", read_bent)


def test_bytes_that_cannot_be_decoded_stop_the_source(stack, database, topic_prefix, bent):
    source = Capturing(stack.bootstrap, database, topic_prefix, ["orders"])
    source.execute(TABLE)
    source.start()
    source.wait_ready()
    source.execute("insert into orders values (1, 'good', 1)")
    before = source.wal_end()
    source.transaction(
        "insert into orders values (2, 'of the same transaction', 1)",
        "insert into orders values (3, 'poison', 1)",
    )
    error = source.ends_with()
    assert (type(error), error.code) == (SourceStopped, "malformed_message")
    assert error.position is not None
    assert error.remedy is not None
    assert parse_lsn(error.position) >= before
    assert "poison" not in str(error)
    view, record = source.frontier(), source.control().tables[ORDERS]
    assert (record.state, record.last_good) == (ERRORED, view.position)
    assert record.reason is not None and error.position in record.reason
    assert record.remedy is not None and "cdc destroy" in record.remedy
    # Everything before is there, nothing of it is, nor is it confirmed.
    assert set(in_log(source)) == {1}
    assert source.confirmed() <= view.record.end_lsn <= parse_lsn(error.position)
    # It stays so.
    source.start()
    assert source.ends_with().code == "source_errored"
