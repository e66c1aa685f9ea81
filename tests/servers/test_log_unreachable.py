"""A broker that refuses to be connected to is told at once, one that only is slow is waited for."""

import socket
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest

from cdc.errors import EnvironmentProblem
from cdc.log.admin import LogAdmin
from cdc.log.reader import LogReader
from cdc.log.topics import table_topic
from deploy.local.ports import choose_port

pytestmark = pytest.mark.timeout(60)


@contextmanager
def slow_way_to(bootstrap, seconds):
    """Address of a server that takes connections, and passes nothing on for so long."""
    host, _, port = bootstrap.rpartition(":")
    threads = []

    def begin(target, *arguments):
        threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        threads[-1].start()

    def pass_on(source, target):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(client):
        with client:
            time.sleep(seconds)
            with socket.create_connection((host, int(port))) as broker:
                begin(pass_on, broker, client)
                pass_on(client, broker)

    def accept(server):
        with suppress(OSError):
            while True:
                begin(serve, server.accept()[0])

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        begin(accept, server)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(10)


def test_brokers_that_refuse_are_not_waited_for():
    bootstrap = f"127.0.0.1:{choose_port()}"
    with (
        # Longer than this test may take.
        LogReader(bootstrap, timeout=3600, refused_after=0.5) as reader,
        pytest.raises(EnvironmentProblem) as caught,
    ):
        reader.bounds("any")
    assert caught.value.code == "kafka_unreachable"


def test_a_broker_that_answers_late_is_waited_for(stack, topic_prefix):
    topic = f"{topic_prefix}a"
    LogAdmin(stack.bootstrap).create_topics(
        [table_topic(topic, partitions=1, replication_factor=1, history_ms=3_600_000)]
    )
    with (
        slow_way_to(stack.bootstrap, 2.0) as bootstrap,
        LogReader(bootstrap, refused_after=0.5) as reader,
    ):
        assert reader.bounds(topic) == (0, 0)
