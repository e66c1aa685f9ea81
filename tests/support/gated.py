"""A copier of chunks inside the test's process that goes only as far as the test lets it."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import closing
from typing import Any

from cdc.errors import CdcError
from cdc.load import ChunkDone, LoadFailed
from cdc.log.producer import TransactionalProducer
from cdc.names import snapshot_transactional_id
from snapshots.copier import ChunkCopier, Tuning
from snapshots.rate import RateLimit
from snapshots.source import begin_chunk, end_chunk, open_session
from snapshots.writer import TaskWriter


class Gate:
    """How far each load may be copied; shared by the test and capture's thread."""

    def __init__(self):
        self._limit = 0
        self._lock = threading.Lock()
        #: (table, load, chunk) of every chunk that was copied, in order.
        self.copied = []
        #: Called in the middle of a chunk: after its rows were locked, before they are read.
        self.during = lambda task, chunk: None

    def open_to(self, limit):
        """Chunks of each load below this number may be copied."""
        with self._lock:
            self._limit = limit

    def lets(self, chunk):
        with self._lock:
            return chunk < self._limit

    def __call__(self, settings):
        return GatedCopier(settings, self)


class GatedCopier:
    """Copies a chunk at each ``poll``, of one block each, in this process."""

    def __init__(self, settings, gate):
        self._settings = settings
        self._gate = gate
        self._sizes = ChunkCopier(settings, Tuning(chunk_bytes=8192))
        self._waiting: deque[Any] = deque()
        self._tasks = {}
        self._producer = None

    def measure(self, schemas):
        return self._sizes.measure(schemas)

    def begin(self, task):
        self._tasks[task.key] = task
        self._waiting += [(task.key, chunk) for chunk in task.left]

    def cancel(self, load):
        self._tasks.pop(load, None)
        self._waiting = deque(item for item in self._waiting if item[0] != load)

    def poll(self, seconds=0.0):
        for _ in range(len(self._waiting)):
            key, chunk = self._waiting.popleft()
            if self._gate.lets(chunk):
                return [self._copy(self._tasks[key], chunk)]
            self._waiting.append((key, chunk))
        return []

    @property
    def busy(self):
        return bool(self._waiting)

    def close(self):
        self._sizes.close()
        if self._producer is not None:
            self._producer.close()

    def _copy(self, task, chunk):
        settings = self._settings
        if self._producer is None:
            name = snapshot_transactional_id(settings.project, settings.source, 1)
            self._producer = TransactionalProducer(settings.bootstrap_servers, name)
            self._producer.init()
        writer = TaskWriter(
            task, settings.epoch, settings.origin, self._producer, RateLimit(), lambda: None
        )
        with closing(open_session(settings.conninfo, "gated")) as connection:
            try:
                begin_chunk(connection, task)
                self._gate.during(task, chunk)
                done = writer.copy(connection, chunk, lambda rows: None)
            except CdcError as error:
                self.cancel(task.key)
                return LoadFailed(task.key, error)
            finally:
                end_chunk(connection)
        self._gate.copied.append((task.schema.table, task.schema.load, chunk))
        return ChunkDone(task.key, chunk, done.rows, done.ends, done.snapshot)
