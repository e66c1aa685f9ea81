"""Our contestant: the copier with its worker processes, as capture runs it."""

from __future__ import annotations

import dataclasses
import itertools
import time
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from cdc.load import ChunkDone, LoadFailed, LoadTask
from cdc.log.admin import LogAdmin
from snapshots.copier import ChunkCopier
from snapshots.source import open_session
from tests.benchmarks.parts.runs import Run
from tests.benchmarks.parts.servers import Servers
from tests.support.copying import worker_processes
from tests.support.export import copy_settings, load_tasks
from tests.support.usage import children_seconds, peak_bytes

_prefixes = (f"bench{number}." for number in itertools.count())


def planned(servers: Servers, table: str) -> LoadTask:
    """A load of a table with the chunks that the copier plans, into a topic of its own."""
    with closing(open_session(servers.conninfo, "bench")) as session:
        (task,) = load_tasks(session, servers.bootstrap, next(_prefixes), [table])
    with closing(ChunkCopier(copy_settings(servers.bootstrap, servers.conninfo))) as copier:
        plan = copier.measure([task.schema])[0].plan
    return dataclasses.replace(task, plan=plan, left=tuple(range(plan.count)))


def load(servers: Servers, table: str, workers: int, chunks: int | None = None) -> Run:
    """Load a table, or its first chunks, from the first record to the last acknowledged chunk.

    The topic is gone afterwards.
    """
    task = planned(servers, table)
    task = dataclasses.replace(task, left=task.left[:chunks])
    settings = copy_settings(servers.bootstrap, servers.conninfo, workers=workers)
    rows, peaks, copier_cpu = 0, [0], 0.0
    cpu, postgres, broker = children_seconds(), servers.postgres_seconds(), servers.broker_seconds()
    began = time.time()
    with closing(ChunkCopier(settings)) as copier:
        copier.begin(task)
        while copier.busy:
            before = time.process_time()
            events = copier.poll(0.25)
            copier_cpu += time.process_time() - before
            for event in events:
                if isinstance(event, LoadFailed):
                    raise event.error
                rows += event.rows if isinstance(event, ChunkDone) else 0
            peaks += [peak_bytes(process.pid) for process in worker_processes()]
        ended = time.time()
    first = first_record_time(servers.bootstrap, task.topic)
    # Now the workers have ended and were waited for.
    measured = Run(
        rows=rows,
        seconds=ended - first,
        startup_seconds=first - began,
        cpu=children_seconds() - cpu,
        copier_cpu=copier_cpu,
        postgres_cpu=servers.postgres_seconds() - postgres,
        broker_cpu=servers.broker_seconds() - broker,
        peak_bytes=max(peaks),
        sent_bytes=servers.topic_bytes(task.topic),
        chunks=len(task.left),
    )
    LogAdmin(servers.bootstrap).delete_topics([task.topic])
    return measured


def first_record_time(bootstrap: str, topic: str) -> float:
    """When a producer was given the first record of a topic of one partition; Unix seconds."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    )
    with closing(reader):
        reader.assign([TopicPartition(topic, 0, 0)])
        message = reader.poll(30)
        assert message is not None and message.error() is None
        milliseconds: int = message.timestamp()[1]
        return milliseconds / 1000
