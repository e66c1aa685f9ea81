"""Which chunks of a load are done, as control holds it: merged pairs of first and last. Pure."""

from __future__ import annotations

from cdc.control import LoadRecord

Marks = tuple[tuple[int, int], ...]


def mark(done: Marks, chunk: int) -> Marks:
    """``done`` with one more chunk."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*done, (chunk, chunk)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


def left_of(record: LoadRecord) -> tuple[int, ...]:
    """The chunks that are not done, in order."""
    done = {chunk for first, last in record.done for chunk in range(first, last + 1)}
    return tuple(chunk for chunk in range(record.chunks) if chunk not in done)
