"""Catches apply in the middle of a MERGE: files of the next version are written, it is not."""

from __future__ import annotations

import json
import os
import signal
import time

import psycopg

from cdc.lakelock import LOCK_NAME
from cdc.names import TableId, lake_folder
from spark_jobs.merge import FEW_KEYS

BULK = TableId("public", "bulk")
#: More keys than are written without MERGE.
_ROWS = FEW_KEYS + 200


def create(conninfo):
    """A table whose every update is of all its rows, so that apply merges it."""
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        connection.execute("create table bulk (id int primary key, n int not null)")
        connection.execute(f"insert into bulk select i, 0 from generate_series(1, {_ROWS}) i")


def freeze(pipeline, timeout=300):
    """Stop Spark's JVM inside of a MERGE of ``bulk``; returns its pid.

    The caller kills it, or lets it go on by SIGCONT.
    """
    folder = lake_folder(str(pipeline.lake), pipeline.source, *BULK)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        # Its creation and its first batch are no MERGE.
        if len(commits(folder)) < 2:
            time.sleep(0.05)
            continue
        held, version = _data_files(folder), len(commits(folder))
        with psycopg.connect(**pipeline.conninfo, autocommit=True) as connection:
            connection.execute("update bulk set n = n + 1")
        while len(commits(folder)) == version and time.monotonic() < deadline:
            if _data_files(folder) <= held:
                time.sleep(0.004)
                continue
            jvm = json.loads((pipeline.lake / LOCK_NAME).read_text())["jvm"]["pid"]
            os.kill(jvm, signal.SIGSTOP)
            if len(commits(folder)) == version:
                return jvm
            # It was faster; the next one.
            os.kill(jvm, signal.SIGCONT)
    raise AssertionError(f"no MERGE within {timeout} s: {pipeline.output('apply')[-3000:]}")


def commits(folder):
    """Files of the table's commits."""
    try:
        with os.scandir(f"{folder}/_delta_log") as entries:
            # A commit's checksum is beside it: 0….crc.
            return sorted(
                e.path for e in entries if e.name[:1].isdigit() and e.name[-5:] == ".json"
            )
    except FileNotFoundError:
        return []


def operations(pipeline):
    """What Delta calls each commit of ``bulk``."""
    folder = lake_folder(str(pipeline.lake), pipeline.source, *BULK)
    found = []
    for path in commits(folder):
        with open(path) as lines:
            found += [
                action["commitInfo"]["operation"]
                for action in map(json.loads, lines)
                if "commitInfo" in action
            ]
    return found


def _data_files(folder):
    return {entry.name for entry in os.scandir(folder) if entry.name.startswith("part-")}
