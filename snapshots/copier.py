"""Copies the chunks of all loads of a source in worker processes; never waits for them.

Everything happens inside of ``poll``: workers are started when there are chunks, given some
ahead, listened to, replaced when they die or hang, and ended when there is nothing to do. A
chunk whose worker has died is not copied again before the successor has registered the same
transactional id: from then on the dead one's writes are refused, whatever became of it.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import structlog

from cdc.errors import CdcError, EnvironmentProblem
from cdc.load import (
    ChunkDone,
    CopierEvent,
    CopySettings,
    LoadFailed,
    LoadKey,
    LoadTask,
    Measure,
    Written,
)
from cdc.log.producer import TransactionalProducer
from cdc.names import MAX_SNAPSHOT_WORKERS, snapshot_transactional_id
from cdc.schema import TableSchema
from snapshots.failures import Verdict, interrupted, verdict
from snapshots.measure import measure
from snapshots.messages import Blocked, Done, Failed, Message, Ready, RowsWritten, WorkerSetup
from snapshots.plan import CHUNK_BYTES
from snapshots.pool import Worker
from snapshots.schedule import Chunk, Schedule
from snapshots.slot import FIRST_BACK_OFF, Process, Slot
from snapshots.source import open_session

log = structlog.get_logger(__name__)

_MOST_DEATHS: Final = 5
_TICK_SECONDS: Final = 0.25
_LOCK_BACK_OFF: Final = 1.0
_LIMITED_CHUNK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Tuning:
    """What only tests and benchmarks change.

    Args:
        chunk_bytes: What a chunk should hold.
        stall_seconds: A worker without progress for so long is replaced; twice as long at each
            further try of a chunk.
        idle_seconds: A worker without work for so long is ended.
        first_back_off: Seconds from a worker's first failure to its successor.
        start: Starts a worker process.
        fence: Registers a worker's transactional id from this process.
        clock: Monotonic seconds.
    """

    chunk_bytes: int = CHUNK_BYTES
    stall_seconds: float = 120.0
    idle_seconds: float = 5.0
    first_back_off: float = FIRST_BACK_OFF
    start: Callable[[WorkerSetup], Process] = Worker
    fence: Callable[[CopySettings, int], None] | None = None
    clock: Callable[[], float] = time.monotonic


def fence(settings: CopySettings, number: int) -> None:
    """Register a worker's transactional id: what its process has not committed is aborted.

    Raises:
        CdcError: Kafka does not answer.
    """
    name = snapshot_transactional_id(settings.project, settings.source, number)
    with TransactionalProducer(settings.bootstrap_servers, name, settings.log_options) as producer:
        producer.init()


class ChunkCopier:
    """The ``cdc.load.Copier`` of a source; for one thread, with which its workers die.

    Args:
        settings: Of the source.
        tuning: Of the copier.
    """

    def __init__(self, settings: CopySettings, tuning: Tuning | None = None) -> None:
        self._settings = settings
        self._tuning = tuning or Tuning()
        self._clock = self._tuning.clock
        self._fence = self._tuning.fence or fence
        count = max(1, min(settings.workers, MAX_SNAPSHOT_WORKERS))
        back_off = self._tuning.first_back_off
        self._slots = [Slot(number, back_off) for number in range(1, count + 1)]
        self._schedule = Schedule()
        # Loads that are over, and that one of our processes may still be writing to.
        self._failing: dict[LoadKey, CdcError] = {}
        self._events: list[CopierEvent] = []
        self._selector = selectors.DefaultSelector()

    # --- Copier ---

    def measure(self, schemas: Sequence[TableSchema]) -> list[Measure]:
        """Size up tables from the catalog alone, in one query; see ``cdc.load.Copier``."""
        settings = self._settings
        # A chunk's transaction must not last for hours because its rows may come only slowly.
        rate = settings.rows_per_second
        chunk_rows = None if rate is None else rate / len(self._slots) * _LIMITED_CHUNK_SECONDS
        try:
            with closing(open_session(settings.conninfo, f"cdc {settings.source} plan")) as session:
                return measure(session, schemas, self._tuning.chunk_bytes, chunk_rows)
        except CdcError as error:
            raise self._named(error) from None

    def begin(self, task: LoadTask) -> None:
        """Copy what is left of a load, after the loads that were begun before."""
        self._schedule.begin(task)

    def cancel(self, load: LoadKey) -> None:
        """Stop copying a load; returns when nothing writes to its topic any more.

        Raises:
            CdcError: Kafka does not answer, so a worker that was killed may still have rows
                under way; to be called again.
        """
        self._schedule.forget(load)
        self._failing.pop(load, None)
        self._events = [event for event in self._events if event.load != load]
        for slot in self._slots:
            if slot.has(load) or (slot.left(load) and slot.process is not None):
                self._kill(slot, self._clock())
        for slot in self._slots:
            if slot.left(load):
                self._fence(self._settings, slot.number)
                self._fenced(slot)

    def poll(self, seconds: float = 0.0) -> list[CopierEvent]:
        """What has happened since the last call; see ``cdc.load.Copier``."""
        until = self._clock() + seconds
        while True:
            self._listen(0.0)
            self._tend()
            left = until - self._clock()
            if self._events or left <= 0:
                events, self._events = self._events, []
                return events
            self._listen(min(left, _TICK_SECONDS))

    @property
    def busy(self) -> bool:
        """Whether any chunk is being copied or waits for it, or a failure is to be told."""
        return bool(len(self._schedule) or self._failing or self._events)

    def close(self) -> None:
        """End all workers."""
        for slot in self._slots:
            if slot.process is not None:
                self._kill(slot, self._clock())
        self._selector.close()

    # --- inside ---

    def _listen(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            slot: Slot = key.data
            process = slot.process
            if process is None:
                continue
            for message in process.read():
                slot.heard = self._clock()
                self._take(slot, message)
                if slot.process is not process:
                    break

    def _take(self, slot: Slot, message: Message | None) -> None:
        match message:
            case Ready():
                slot.ready = True
                self._fenced(slot)
            case RowsWritten(rows):
                key, chunk = slot.queue[0]
                self._events.append(Written(key, chunk, rows))
            case Done(rows, ends, seconds, snapshot):
                done = slot.finished(seconds, self._clock())
                self._schedule.done(done)
                self._events.append(ChunkDone(*done, rows, ends, snapshot))
            case Blocked(holders):
                self._put_off(slot, holders)
            case Failed(error):
                self._replace(slot, error)
            case None:
                self._replace(slot, None, "ended")

    def _put_off(self, slot: Slot, holders: tuple[str, ...]) -> None:
        now = self._clock()
        chunk = slot.dropped(now)
        self._schedule.put_off(chunk, now + _LOCK_BACK_OFF)
        log.warning(
            "the table is locked: its load waits",
            table=f"{self._settings.source}.{chunk[0][0]}",
            held_by=", ".join(holders) or "nobody any more",
        )

    def _replace(self, slot: Slot, error: CdcError | None, what: str = "failed") -> None:
        """A worker has failed (None: without a word); it may live on, and must not write."""
        chunk = slot.queue[0] if slot.queue else None
        idle = slot.ready and chunk is None
        how = self._kill(slot, 0.0)
        if error is None:
            error = EnvironmentProblem(
                "snapshot_worker_died",
                f"snapshot worker {slot.number} {what} {how}",
                table=str(chunk[0][0]) if chunk is not None else None,
                remedy="is there enough memory?",
            )
            judged = Verdict.COUNT
        else:
            judged = verdict(error)
        if judged is Verdict.STOP:
            raise self._named(error)
        if idle:
            # Nothing of it was open.
            return
        self._after_failure(slot, chunk, error, judged)

    def _after_failure(
        self, slot: Slot, chunk: Chunk | None, error: CdcError, judged: Verdict
    ) -> None:
        if chunk is None and judged is not Verdict.RETRY:
            slot.failed_starts += 1
            if slot.failed_starts >= _MOST_DEATHS:
                raise self._named(error)
        elif chunk is not None and judged is Verdict.COUNT:
            deaths = self._schedule.died(chunk)
            judged = Verdict.FAIL if deaths >= _MOST_DEATHS else judged
        if chunk is not None and judged is Verdict.FAIL:
            self._fail(chunk[0], error)
            return
        pause = slot.back_off()
        slot.not_before = self._clock() + pause
        log.warning(
            "snapshot worker failed: it is replaced",
            number=slot.number,
            code=error.code,
            reason=error.message,
            table=error.table,
            in_seconds=pause,
        )

    def _fail(self, key: LoadKey, error: CdcError) -> None:
        """A load is over; that is told when nothing writes to its topic any more."""
        self._schedule.forget(key)
        error.table = error.table or str(key[0])
        self._failing[key] = self._named(error)
        for slot in self._slots:
            if slot.has(key):
                self._kill(slot, 0.0)
        log.warning("load failed", table=error.table, load=key[1], code=error.code)

    def _fenced(self, slot: Slot) -> None:
        self._schedule.give_back(slot.fenced(self._clock()))
        for key in list(self._failing):
            if not any(other.left(key) for other in self._slots):
                self._events.append(LoadFailed(key, self._failing.pop(key)))

    def _kill(self, slot: Slot, not_before: float) -> str:
        assert slot.process is not None  # noqa: S101 - for the type checker
        self._selector.unregister(slot.process)
        begun = slot.queue[0][0] if slot.queue else None
        how = slot.kill(not_before)
        if begun is not None and begun in self._schedule:
            schema = self._schedule.task(begun).schema
            if schema.counted:
                # A part of its rows may be in the topic, and nothing tells which.
                self._schedule.forget(begun)
                self._failing[begun] = self._named(interrupted(schema))
        return how

    def _tend(self) -> None:
        """Replace what hangs, start what is needed, hand out chunks, end what is idle."""
        now = self._clock()
        for slot in self._slots:
            self._check(slot, now)
        ready = self._schedule.ready(now)
        running = sum(slot.process is not None for slot in self._slots)
        # Chunks in the queue of a worker that others are idle enough to take count, too.
        wanted = min(len(self._slots), ready + sum(bool(slot.queue) for slot in self._slots))
        for slot in self._slots:
            if slot.process is None and now >= slot.not_before:
                if slot.lost or running < wanted:
                    self._start(slot, now)
                    running += 1
        self._hand_out(now, ready)
        self._share_rate()
        for slot in self._slots:
            if slot.process is not None:
                slot.process.flush()

    def _check(self, slot: Slot, now: float) -> None:
        if slot.process is None:
            return
        if slot.ready and not slot.queue:
            if now - slot.idle_since >= self._tuning.idle_seconds:
                # It has nothing open, neither here nor there.
                self._kill(slot, now)
            return
        patience = self._tuning.stall_seconds
        if slot.queue:
            patience *= 2 ** self._schedule.deaths(slot.queue[0])
        if now - slot.heard >= patience:
            self._replace(slot, None, f"did nothing for {patience:.0f} s and was ended")

    def _start(self, slot: Slot, now: float) -> None:
        settings = self._settings
        first = self._schedule.first(now)
        setup = WorkerSetup(
            number=slot.number,
            project=settings.project,
            source=settings.source,
            conninfo=settings.conninfo,
            epoch=settings.epoch,
            origin=settings.origin,
            bootstrap_servers=settings.bootstrap_servers,
            log_options=settings.log_options,
            topic=first.topic if first is not None else None,
        )
        try:
            slot.start(self._tuning.start, setup, now)
        except OSError as problem:
            pause = slot.back_off()
            slot.not_before = now + pause
            log.warning(
                "cannot start a snapshot worker",
                number=slot.number,
                reason=problem.strerror,
                in_seconds=pause,
            )
            return
        assert slot.process is not None  # noqa: S101 - for the type checker
        self._selector.register(slot.process, selectors.EVENT_READ, slot)

    def _hand_out(self, now: float, ready: int) -> None:
        workers = [slot for slot in self._slots if slot.process is not None]
        takers = [slot for slot in workers if slot.ready]
        if not takers or not ready:
            return
        # Nobody takes so much ahead that others, such as those that are starting, go without.
        fair = -(-(ready + sum(len(slot.queue) for slot in workers)) // len(workers))
        while True:
            slot = min(takers, key=lambda taker: len(taker.queue))
            if len(slot.queue) >= min(slot.depth, fair):
                takers.remove(slot)
                if not takers:
                    return
                continue
            chunk = self._schedule.next(now)
            if chunk is None:
                return
            slot.give(chunk, self._schedule.task(chunk[0]), now)

    def _share_rate(self) -> None:
        total = self._settings.rows_per_second
        if total is None:
            return
        busy = [slot for slot in self._slots if slot.queue]
        for slot in busy:
            slot.limit(total / len(busy))

    def _named(self, error: CdcError) -> CdcError:
        """The error with the source in its table's name."""
        if error.table is not None:
            error.table = f"{self._settings.source}.{error.table}"
        return error
