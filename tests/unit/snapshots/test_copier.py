"""The copier with workers made up of two pipes, and with a clock of its own."""

import os
from types import SimpleNamespace

import pytest

from cdc import codecs
from cdc.envelope import Origin
from cdc.errors import CdcError, EnvironmentProblem, LogError, SourceError, SourceRefused
from cdc.load import ChunkDone, ChunkPlan, CopySettings, LoadFailed, LoadTask, Written
from snapshots.copier import ChunkCopier, Tuning
from snapshots.messages import Blocked, CopyChunk, Done, Failed, Ready, RowsWritten, SetRate
from tests.support.schemas import table_schema


class NoMemory(OSError):
    strerror = "Cannot allocate memory"


class Fake:
    """A worker that says what the test wants and keeps what it was told."""

    def __init__(self, world, setup):
        if world.no_memory:
            raise NoMemory
        self.setup = setup
        self.told = []
        self.read_end, self.write_end = os.pipe()
        self.said = []
        self.alive = True
        world.started.append(self)

    def say(self, *messages):
        assert self.alive
        self.said += messages
        os.write(self.write_end, b".")

    def fileno(self):
        return self.read_end

    def tell(self, command):
        assert self.alive
        self.told.append(command)

    def flush(self):
        pass

    def read(self):
        os.read(self.read_end, 100)
        said, self.said = self.said, []
        return said

    def kill(self):
        assert self.alive
        self.alive = False
        os.close(self.read_end)
        os.close(self.write_end)
        return "by signal 9"

    @property
    def chunks(self):
        return [command.chunk for command in self.told if isinstance(command, CopyChunk)]


def task(table, *left):
    schema = table_schema(("id", codecs.INT8), table=table)
    return LoadTask(schema, 1, f"topic-{table}", 1, 100, ChunkPlan.whole(10, 100), left)


A, B = task("a", 0, 1), task("b", 0)


@pytest.fixture
def world():
    return SimpleNamespace(now=1000.0, started=[], fenced=[], fence_error=None, no_memory=False)


@pytest.fixture
def make(world):
    made = []

    def fence(_settings, number):
        assert not any(w.alive and w.setup.number == number for w in world.started)
        if world.fence_error:
            raise world.fence_error
        world.fenced.append(number)

    def make(workers=2, rows_per_second=None):
        settings = CopySettings(
            "p", "shop", {}, 1, Origin("0", "shop", "db"), "b", {}, workers, rows_per_second
        )
        tuning = Tuning(
            stall_seconds=100,
            idle_seconds=5,
            start=lambda setup: Fake(world, setup),
            fence=fence,
            clock=lambda: world.now,
        )
        made.append(ChunkCopier(settings, tuning))
        return made[-1]

    yield make
    for copier in made:
        copier.close()
    assert not any(worker.alive for worker in world.started)


def finish(worker, rows=1):
    worker.say(Done(rows, {}, 20.0))


def begin(copier, *tasks):
    for one in tasks:
        copier.begin(one)
    assert copier.poll() == []


def make_ready(copier, *workers):
    for worker in workers:
        worker.say(Ready())
    copier.poll()


def test_workers_as_many_as_chunks(make, world):
    copier = make(workers=3)
    begin(copier, A)
    assert [worker.setup.number for worker in world.started] == [1, 2]
    assert world.started[0].setup.topic == A.topic
    # Nothing is handed out before the id is registered.
    assert [worker.told for worker in world.started] == [[], []]
    one, two = world.started
    make_ready(copier, one)
    # The other one is on its way: it gets its share.
    assert one.told == [A, CopyChunk(0)]
    make_ready(copier, two)
    assert two.told == [A, CopyChunk(1)]
    one.say(RowsWritten(10), Done(30, {A.topic: {0: 31}}, 1.0))
    assert copier.poll() == [Written(A.key, 0, 10), ChunkDone(A.key, 0, 30, {A.topic: {0: 31}})]
    assert copier.busy
    finish(two)
    assert copier.poll() == [ChunkDone(A.key, 1, 1, {})]
    assert not copier.busy
    world.now += 6
    copier.poll()
    assert not one.alive and not two.alive
    begin(copier, B)
    assert len(world.started) == 3


def test_small_chunks_are_handed_out_ahead(make, world):
    copier = make(workers=1)
    begin(copier, task("many", *range(100)))
    (worker,) = world.started
    make_ready(copier, worker)
    assert worker.chunks == [0, 1]
    worker.say(Done(1, {}, 0.05), Done(1, {}, 0.05))
    copier.poll()
    assert len(worker.chunks) == 2 + 21


@pytest.mark.parametrize("last_words", [None, "connection_lost"])
def test_a_chunk_waits_until_the_dead_worker_is_fenced(make, world, last_words):
    copier = make(workers=2)
    begin(copier, task("a", 0, 1, 2))
    one, two = world.started
    make_ready(copier, one, two)
    one.say(Failed(SourceError(last_words, "gone")) if last_words else None)
    finish(two)
    copier.poll()
    assert not one.alive
    assert sorted(one.chunks + two.chunks) == [0, 1, 2]
    given = list(two.chunks)
    assert len(world.started) == 2
    world.now += 0.5
    copier.poll()
    three = world.started[2]
    assert three.setup.number == 1
    # Nobody has them yet, though the other worker has nothing to do.
    assert (two.chunks, three.chunks) == (given, [])
    make_ready(copier, three)
    assert sorted(three.chunks + two.chunks) == [0, 1, 2]


def test_back_off_grows_until_a_chunk_is_done(make, world):
    copier = make(workers=1)
    begin(copier, A)
    waited = []
    for _ in range(7):
        worker = world.started[-1]
        worker.say(Failed(EnvironmentProblem("kafka_unreachable", "down")))
        copier.poll()
        assert not worker.alive
        since = world.now
        while world.started[-1] is worker:
            world.now += 0.25
            copier.poll()
        waited.append(world.now - since)
    assert waited == [0.5, 1, 2, 4, 8, 10, 10]
    assert copier.busy


def test_errors_of_the_environment_never_fail_a_load(make, world):
    copier = make(workers=1)
    begin(copier, A)
    for _ in range(20):
        worker = world.started[-1]
        make_ready(copier, worker)
        worker.say(Failed(LogError("kafka_timeout", "slow")))
        assert copier.poll() == []
        world.now += 10
        assert copier.poll() == []
    assert copier.busy


def die_at(copier, world, times, error=None):
    events = []
    for _ in range(times):
        worker = world.started[-1]
        make_ready(copier, worker)
        worker.say(Failed(error) if error else None)
        events += copier.poll()
        world.now += 10
        events += copier.poll()
    return events


@pytest.mark.parametrize(
    "error",
    [
        None,
        SourceError("source_error", "odd", table="public.a"),
        CdcError("internal_error", "a snapshot worker failed unexpectedly (KeyError)"),
    ],
)
def test_a_chunk_that_kills_its_workers_fails_its_load(make, world, error):
    copier = make(workers=1)
    begin(copier, A, B)
    assert die_at(copier, world, 4, error) == []
    worker = world.started[-1]
    make_ready(copier, worker)
    worker.say(Failed(error) if error else None)
    # Not before the successor has fenced the dead one.
    assert copier.poll() == []
    last = world.started[-1]
    assert last is not worker
    last.say(Ready())
    (failed,) = copier.poll()
    assert isinstance(failed, LoadFailed) and failed.load == A.key
    assert failed.error.code == (error.code if error else "snapshot_worker_died")
    assert failed.error.table == "shop.public.a"
    assert last.told == [B, CopyChunk(0)]


def test_another_chunk_in_between_forgives_the_dead(make, world):
    copier = make(workers=1)
    begin(copier, task("a", *range(8)))
    for _ in range(3):
        assert die_at(copier, world, 4) == []
        worker = world.started[-1]
        make_ready(copier, worker)
        finish(worker)
        (done,) = copier.poll()
        assert isinstance(done, ChunkDone)


def test_a_hanging_worker_is_killed_with_more_patience_each_time(make, world):
    copier = make(workers=1)
    begin(copier, A)
    (worker,) = world.started
    make_ready(copier, worker)
    world.now += 99
    worker.say(RowsWritten(1))
    copier.poll()
    world.now += 99
    copier.poll()
    assert worker.alive
    world.now += 1
    copier.poll()
    assert not worker.alive
    world.now += 1
    copier.poll()
    second = world.started[1]
    make_ready(copier, second)
    world.now += 199
    copier.poll()
    assert second.alive
    world.now += 1
    copier.poll()
    assert not second.alive


def test_a_worker_that_does_not_start_is_killed(make, world):
    copier = make(workers=1)
    begin(copier, A)
    world.now += 100
    copier.poll()
    assert not world.started[0].alive
    world.now += 0.5
    copier.poll()
    assert world.started[1].alive


def test_a_machine_without_room_for_a_worker_is_asked_again(make, world):
    copier = make(workers=1)
    world.no_memory = True
    begin(copier, A)
    world.now += 0.4
    copier.poll()
    world.no_memory = False
    copier.poll()
    assert world.started == []
    world.now += 0.1
    copier.poll()
    assert len(world.started) == 1


def test_workers_that_can_never_start_end_it(make, world):
    copier = make(workers=1)
    begin(copier, A)
    for _ in range(4):
        world.started[-1].say(None)
        copier.poll()
        world.now += 10
        copier.poll()
    world.started[-1].say(None)
    with pytest.raises(EnvironmentProblem, match="ended by signal 9"):
        copier.poll()


def test_a_refused_load_fails_alone_when_nobody_writes_to_it_any_more(make, world):
    copier = make(workers=2)
    begin(copier, A, B)
    one, two = world.started
    make_ready(copier, one, two)
    assert (A in one.told, A in two.told) == (True, True)
    one.say(Failed(SourceRefused("no_permission", "no", table="public.a")))
    assert copier.poll() == []
    # The other worker was busy with the same load.
    assert not one.alive and not two.alive
    three, four = world.started[2:]
    three.say(Ready())
    assert copier.poll() == []
    assert copier.busy
    four.say(Ready())
    (failed,) = copier.poll()
    assert (failed.load, failed.error.table) == (A.key, "shop.public.a")
    taker = next(worker for worker in (three, four) if worker.told)
    assert taker.told == [B, CopyChunk(0)]
    finish(taker)
    assert copier.poll() == [ChunkDone(B.key, 0, 1, {})]
    assert not copier.busy


def test_a_locked_table_is_put_off(make, world):
    copier = make(workers=1)
    begin(copier, A, B)
    (worker,) = world.started
    make_ready(copier, worker)
    assert worker.told == [A, CopyChunk(0), CopyChunk(1)]
    worker.say(Blocked(("pid 7",)), Blocked(("pid 7",)))
    assert copier.poll() == []
    assert worker.told[3:] == [B, CopyChunk(0)]
    finish(worker)
    assert len(copier.poll()) == 1
    assert worker.told[5:] == []
    world.now += 1
    copier.poll()
    # One chunk tries.
    assert worker.told[5:] == [A, CopyChunk(0)] or worker.told[5:] == [A, CopyChunk(1)]
    finish(worker)
    copier.poll()
    assert sorted(worker.chunks[-2:]) == [0, 1]


def test_cancel_fences_whoever_was_busy_and_keeps_the_rest(make, world):
    copier = make(workers=2)
    begin(copier, A, task("b", 0, 1))
    one, two = world.started
    make_ready(copier, one, two)
    assert one.told == [A, CopyChunk(0), CopyChunk(1)] or one.told[:2] == [A, CopyChunk(0)]
    one.say(RowsWritten(5))
    busy = [w.setup.number for w in (one, two) if A in w.told]
    copier.cancel(A.key)
    assert world.fenced == busy
    assert all(w.alive != (w.setup.number in busy) for w in (one, two))
    copier.cancel(A.key)
    assert world.fenced == busy
    done = []
    for _ in range(10):
        for worker in world.started:
            if worker.alive and not worker.told:
                worker.say(Ready())
            elif worker.alive:
                while len(worker.chunks) > getattr(worker, "finished", 0):
                    worker.finished = getattr(worker, "finished", 0) + 1
                    finish(worker)
        done += copier.poll()
    assert sorted((event.load[0].table, event.chunk) for event in done) == [("b", 0), ("b", 1)]
    assert not copier.busy


def test_cancel_fences_the_dead_whose_successor_is_not_ready(make, world):
    copier = make(workers=1)
    begin(copier, A)
    make_ready(copier, world.started[0])
    world.started[0].say(None)
    copier.poll()
    world.now += 1
    copier.poll()
    assert world.started[1].alive
    world.fence_error = LogError("kafka_timeout", "slow")
    with pytest.raises(LogError):
        copier.cancel(A.key)
    world.fence_error = None
    copier.cancel(A.key)
    assert world.fenced == [1]
    assert not copier.busy
    assert copier.poll() == []


def test_a_fenced_worker_means_another_capture(make, world):
    copier = make(workers=1)
    begin(copier, A)
    make_ready(copier, world.started[0])
    world.started[0].say(Failed(LogError("producer_fenced", "fenced")))
    with pytest.raises(LogError) as fenced:
        copier.poll()
    assert fenced.value.code == "producer_fenced"


def test_the_rate_is_shared_by_those_that_are_busy(make, world):
    copier = make(workers=2, rows_per_second=1000)
    begin(copier, A)
    one, two = world.started
    make_ready(copier, one)
    assert SetRate(1000.0) in one.told
    make_ready(copier, two)
    assert one.told[-1] == two.told[-1] == SetRate(500.0)
    finish(one)
    copier.poll()
    assert two.told[-1] == SetRate(1000.0)


def counted(table):
    schema = table_schema(("v", codecs.TEXT), table=table, key=(), identity="f")
    return LoadTask(schema, 1, f"topic-{table}", 1, 100, ChunkPlan.whole(10, 1), (0,))


@pytest.mark.parametrize("last_words", [None, SourceError("connection_lost", "gone")])
def test_a_table_without_a_key_is_not_copied_again(make, world, last_words):
    copier, whole = make(workers=1), counted("whole")
    begin(copier, whole, B)
    (one,) = world.started
    make_ready(copier, one)
    one.say(Failed(last_words) if last_words else None)
    assert copier.poll() == []
    world.now += 1
    copier.poll()
    two = world.started[-1]
    two.say(Ready())
    (failed,) = copier.poll()
    assert isinstance(failed, LoadFailed) and failed.load == whole.key
    assert (failed.error.code, failed.error.table) == ("load_interrupted", "shop.public.whole")
    assert two.told == [B, CopyChunk(0)]


def test_a_table_without_a_key_fails_when_its_worker_ends_for_another_load(make, world):
    copier, whole = make(workers=1), counted("whole")
    begin(copier, whole, B)
    (one,) = world.started
    make_ready(copier, one)
    assert one.told == [whole, CopyChunk(0), B, CopyChunk(0)]
    copier.cancel(B.key)
    (failed,) = copier.poll()
    assert failed.error.code == "load_interrupted"
    assert not copier.busy
    # One that only waits behind another chunk was not begun.
    copier = make(workers=1)
    begin(copier, A, whole)
    one = world.started[-1]
    make_ready(copier, one)
    one.say(Done(1, {}, 0.05))
    copier.poll()
    copier.cancel(A.key)
    assert copier.poll() == []
    world.now += 1
    copier.poll()
    two = world.started[-1]
    make_ready(copier, two)
    assert two.told == [whole, CopyChunk(0)]


def test_the_snapshot_of_a_copy_is_told(make, world):
    copier, whole = make(workers=1), counted("whole")
    begin(copier, whole)
    (one,) = world.started
    make_ready(copier, one)
    one.say(Done(3, {}, 1.0, "5:7:5"))
    assert copier.poll() == [ChunkDone(whole.key, 0, 3, {}, "5:7:5")]
