"""Decoding a 10-column Insert, against a bare split of the same bytes into the same values.

The baseline does the least that any decoder in Python must: find each value by its length and
slice it, without any check, message or session.
"""

import statistics
import time

from connectors.postgres.messages import Insert
from connectors.postgres.pgoutput import decode
from connectors.postgres.session import ReplicationSession
from tests.support.pgoutput_encoder import encode, int64, xlog_data

ROW = (
    b"123456",
    b"A name of usual length",
    None,
    b"2024-01-01 00:00:00.123456+00",
    b"1234.50",
    b"t",
    b"42",
    b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    b"3.25",
    b"x" * 60,
)
_BEGIN = xlog_data(b"B" + int64(1) + int64(0) + b"\0\0\0\1")
ROUNDS = 5


def bare_split(data, pos):
    values: list[bytes | None] = []
    for _ in range(data[pos] << 8 | data[pos + 1]):
        if data[pos + 2] == 0x6E:
            values.append(None)
            pos += 1
        else:
            end = pos + 7 + int.from_bytes(data[pos + 3 : pos + 7], "big")
            values.append(data[pos + 7 : end])
            pos = end - 2
    return tuple(values)


def run(rows: int = 200_000):
    """Microseconds of CPU per row and ratios to the bare split: medians of interleaved rounds."""
    frames = [xlog_data(encode(Insert(16385, ROW))) for _ in range(rows)]
    assert bare_split(frames[0], 31) == ROW

    def split():
        for data in frames:
            bare_split(data, 31)

    def decoded():
        for data in frames:
            decode(data, 25)

    def received():
        session = ReplicationSession(0, 0.0)
        session.receive(_BEGIN)
        for data in frames:
            session.receive(data)

    contestants = {"bare split": split, "decode": decoded, "session": received}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, work in contestants.items():
            started = time.process_time()
            work()
            times[name].append(time.process_time() - started)
    per_row = {name: statistics.median(t) / rows * 1e6 for name, t in times.items()}
    baseline = per_row["bare split"]
    return {
        "figures": {f"{name}, µs per row": round(us, 2) for name, us in per_row.items()},
        "ratios": {
            f"{name} / bare split": round(per_row[name] / baseline, 2)
            for name in ("decode", "session")
        },
    }
