"""The chunks of a load as control holds them: how the table is cut, and which are done. Pure.

Those that are done are merged pairs of first and last.
"""

from __future__ import annotations

import dataclasses

from cdc.control import LoadRecord
from cdc.load import ChunkPlan, Measure, Piece

Marks = tuple[tuple[int, int], ...]


def planned(record: LoadRecord, measure: Measure) -> LoadRecord:
    """The record of a load whose table was measured."""
    pieces = measure.plan.pieces
    if any(piece.leaves for piece in pieces):
        step, listed = 0, tuple((piece.leaves, piece.step, piece.count) for piece in pieces)
    else:
        step, listed = pieces[0].step, ()
    return dataclasses.replace(
        record, chunks=measure.plan.count, step=step, pieces=listed, estimate=measure.rows
    )


def plan_of(record: LoadRecord) -> ChunkPlan:
    """How the table of a load is cut that is planned."""
    if not record.pieces:
        return ChunkPlan.whole(record.step, record.chunks)
    return ChunkPlan(tuple(Piece(step, count, leaves) for leaves, step, count in record.pieces))


def mark(done: Marks, chunk: int) -> Marks:
    """``done`` with one more chunk."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*done, (chunk, chunk)]):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


def marked(record: LoadRecord, chunk: int, rows: int, snapshot: str | None) -> LoadRecord:
    """The record of a load with one more chunk, which had so many rows; itself if it is not new."""
    done = mark(record.done, chunk)
    if done == record.done:
        return record
    return dataclasses.replace(record, done=done, rows=record.rows + rows, snapshot=snapshot)


def left_of(record: LoadRecord) -> tuple[int, ...]:
    """The chunks that are not done, in order."""
    done = {chunk for first, last in record.done for chunk in range(first, last + 1)}
    return tuple(chunk for chunk in range(record.chunks) if chunk not in done)
