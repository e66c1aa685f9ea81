"""Which chunk is copied next. Pure: times are given."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cdc.load import LoadKey, LoadTask

#: A chunk of a load.
Chunk = tuple[LoadKey, int]


@dataclass(slots=True)
class _Load:
    task: LoadTask
    waiting: deque[int]
    # Chunks that a worker has, or has left behind.
    out: set[int] = field(default_factory=set)
    blocked_until: float | None = None


class Schedule:
    """Loads by priority and beginning; of each, the chunks that wait and that are out."""

    def __init__(self) -> None:
        self._loads: dict[LoadKey, _Load] = {}
        self._deaths: Counter[Chunk] = Counter()

    def begin(self, task: LoadTask) -> None:
        """Take a load.

        Raises:
            ValueError: It is here already.
        """
        if task.key in self._loads:
            raise ValueError(f"load {task.schema.load} of {task.schema.id} runs already")
        if task.left:
            self._loads[task.key] = _Load(task, deque(task.left))
            by_priority = sorted(self._loads.items(), key=lambda item: -item[1].task.priority)
            self._loads = dict(by_priority)

    def forget(self, key: LoadKey) -> None:
        """No more chunks of a load."""
        self._loads.pop(key, None)
        for chunk in [chunk for chunk in self._deaths if chunk[0] == key]:
            del self._deaths[chunk]

    def task(self, key: LoadKey) -> LoadTask:
        """Of a load that is here."""
        return self._loads[key].task

    def next(self, now: float) -> Chunk | None:
        """Take the chunk that is to be copied next; None if there is none at this time.

        Of a load whose table is locked only one chunk at a time is tried.
        """
        for key, load in self._loads.items():
            if load.waiting and not _pauses(load, now):
                chunk = load.waiting.popleft()
                load.out.add(chunk)
                return key, chunk
        return None

    def ready(self, now: float) -> int:
        """How many chunks ``next`` would give at this time, one after the other."""
        return sum(
            len(load.waiting) if load.blocked_until is None else min(1, len(load.waiting))
            for load in self._loads.values()
            if not _pauses(load, now)
        )

    def first(self, now: float) -> LoadTask | None:
        """The task of the chunk that ``next`` would give."""
        for load in self._loads.values():
            if load.waiting and not _pauses(load, now):
                return load.task
        return None

    def give_back(self, chunks: Iterable[Chunk]) -> None:
        """Chunks that are to be copied again, before all others of their loads."""
        for key, chunk in reversed(list(chunks)):
            load = self._loads.get(key)
            if load is not None:
                load.out.discard(chunk)
                load.waiting.appendleft(chunk)

    def put_off(self, chunk: Chunk, until: float) -> None:
        """A chunk whose table is locked; nothing of its load is tried before ``until``."""
        self.give_back([chunk])
        load = self._loads.get(chunk[0])
        if load is not None:
            load.blocked_until = until

    def done(self, chunk: Chunk) -> None:
        """A chunk was copied."""
        key, number = chunk
        self._deaths.clear()
        load = self._loads.get(key)
        if load is not None:
            load.blocked_until = None
            load.out.discard(number)
            if not load.out and not load.waiting:
                del self._loads[key]

    def died(self, chunk: Chunk) -> int:
        """A worker died at a chunk; how often that happened since any chunk was done."""
        self._deaths[chunk] += 1
        return self._deaths[chunk]

    def deaths(self, chunk: Chunk) -> int:
        """How often workers died at a chunk since any chunk was done."""
        return self._deaths[chunk]

    @property
    def wake_at(self) -> float | None:
        """When the first of the blocked loads is to be tried again."""
        return min(
            (load.blocked_until for load in self._loads.values() if load.blocked_until is not None),
            default=None,
        )

    def __len__(self) -> int:
        """Chunks that are not done."""
        return sum(len(load.waiting) + len(load.out) for load in self._loads.values())

    def __contains__(self, key: LoadKey) -> bool:
        return key in self._loads


def _pauses(load: _Load, now: float) -> bool:
    return load.blocked_until is not None and (now < load.blocked_until or bool(load.out))
