"""The process that copies ranges of tables into their topics: ``python -m snapshots.worker``.

Talks to its load over stdin and stdout (messages.py), logs to stderr, and dies with its
parent. One session on the snapshot, one fenced producer, memory for some batches of rows.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from contextlib import closing
from typing import BinaryIO, Final

import structlog

from cdc.batch_encoder import BatchEncoder
from cdc.envelope import BadValue, Headers, RowEncoder, TransactionFields
from cdc.errors import CdcError, LogError, ProtocolViolation, SourceRefused
from cdc.frontier import Ends
from cdc.load import LoadTask
from cdc.log.partition import partition_of
from cdc.log.producer import TransactionalProducer
from cdc.logging import configure_logging
from cdc.names import snapshot_transactional_id
from snapshots.copytext import parse_block
from snapshots.messages import Done, Failed, Message, Ready, WorkerSetup, Written, read_range
from snapshots.plan import BlockRange
from snapshots.source import Connection, RangeCopy, check_table, lock_tables, open_snapshot

log = structlog.get_logger(__name__)

#: A Kafka transaction is committed after so many rows, bytes of COPY text, or seconds.
MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_SECONDS: Final = 10.0

_PR_SET_PDEATHSIG = 1


class RangeWriter:
    """Copies ranges through one session and one producer.

    Args:
        setup: Of the load.
        connection: On the snapshot, holding locks on the tables.
        producer: After its ``init``.
    """

    def __init__(
        self, setup: WorkerSetup, connection: Connection, producer: TransactionalProducer
    ) -> None:
        self._setup = setup
        self._connection = connection
        self._producer = producer
        self._checked: set[int] = set()

    def copy(self, blocks: BlockRange, out: BinaryIO) -> Done:
        """Copy a range; tells ``out`` after each Kafka transaction.

        Raises:
            CdcError: Nothing of the open Kafka transaction is committed.
        """
        task = self._setup.tasks[blocks.table]
        if blocks.table not in self._checked:
            check_table(self._connection, task)
            self._checked.add(blocks.table)
        try:
            return self._copy(task, blocks, out)
        except BadValue as problem:
            raise SourceRefused(
                "bad_value",
                f"a value cannot be captured: {problem}",
                table=str(task.schema.id),
                remedy="correct the row at the source, or leave out the table",
            ) from None
        except LogError as error:
            if error.code == "record_too_large":
                raise SourceRefused(
                    error.code, error.message, table=str(task.schema.id), remedy=error.remedy
                ) from None
            error.table = error.table or str(task.schema.id)
            raise

    def _copy(self, task: LoadTask, blocks: BlockRange, out: BinaryIO) -> Done:
        schema = task.schema
        columns = len(schema.columns)
        encoder = RowEncoder(schema, self._setup.origin)
        batches, load = BatchEncoder(encoder), self._transaction()
        headers = encoder.headers(load.snapshot_position())
        source = RangeCopy(self._connection, schema, blocks)
        rows, open_rows, open_bytes, opened = 0, 0, 0, 0.0
        ends: Ends = {}
        for block in source.blocks():
            batch = parse_block(block, columns)
            if batch:
                if not open_rows:
                    self._producer.begin()
                    opened = time.monotonic()
                keys, values = batches.snapshot_rows(list(zip(*batch, strict=True)), load)
                self._send(task, keys, values, headers)
                rows += len(batch)
                open_rows += len(batch)
                open_bytes += len(block)
            if open_rows and (
                open_rows >= MAX_ROWS
                or open_bytes >= MAX_BYTES
                or time.monotonic() - opened >= MAX_SECONDS
            ):
                self._commit(ends)
                open_rows, open_bytes = 0, 0
                _say(out, Written(rows))
        if rows != source.rows:
            raise ProtocolViolation(
                "bad_copy_data",
                f"COPY says that it sent {source.rows} rows, and {rows} came",
                table=str(schema.id),
            )
        if open_rows:
            self._commit(ends)
        return Done(rows, ends)

    def _send(
        self, task: LoadTask, keys: list[bytes], values: list[bytes], headers: Headers
    ) -> None:
        topic, partitions = task.topic, task.partitions
        to = [partition_of(key, partitions) for key in keys]
        if not self._producer.send_all(topic, to, keys, values, [headers] * len(keys)):
            for partition, key, value in zip(to, keys, values, strict=True):
                self._producer.send(topic, partition, key, value, headers)

    def _commit(self, ends: Ends) -> None:
        for topic, partitions in self._producer.ends().items():
            ends.setdefault(topic, {}).update(partitions)
        self._producer.commit()

    def _transaction(self) -> TransactionFields:
        setup = self._setup
        return TransactionFields(
            setup.epoch,
            setup.consistent_point - 1,
            None,
            setup.taken_us,
            time.time_ns() // 1_000_000,
            snapshot=True,
        )


def serve(commands: BinaryIO, out: BinaryIO) -> None:
    """Copy ranges until there are no more commands.

    Raises:
        CdcError: What went wrong; the process has to end.
    """
    line = commands.readline()
    if not line:
        return
    setup = WorkerSetup.from_line(line)
    configure_logging(f"snapshot:{setup.source}.{setup.number}")
    producer = TransactionalProducer(
        setup.bootstrap_servers,
        snapshot_transactional_id(setup.project, setup.source, setup.number),
        setup.log_options,
        max_message_bytes=setup.max_message_bytes,
    )
    name = f"cdc {setup.source} snapshot {setup.number}"
    with producer:
        producer.init()
        with closing(open_snapshot(setup.conninfo, setup.snapshot, name)) as connection:
            # All of them now: a lock asked for later would wait behind a waiting ALTER TABLE,
            # which waits for the locks that the load holds already.
            lock_tables(connection, setup.tasks)
            _say(out, Ready())
            writer = RangeWriter(setup, connection, producer)
            while line := commands.readline():
                _say(out, writer.copy(read_range(line), out))


def _say(out: BinaryIO, message: Message) -> None:
    out.write(message.to_line())
    out.flush()


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before prctl: then nobody will tell us.
    if os.getppid() != parent:
        os._exit(1)


def main() -> int:
    """Run the process; its one argument is the parent's pid."""
    _die_with(int(sys.argv[1]))
    # Ctrl-C reaches the whole group; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging("snapshot")
    # Nobody else may write between the messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Every batch makes a thousand lists without any cycle among them.
    gc.set_threshold(100_000)
    try:
        serve(sys.stdin.buffer, out)
    except CdcError as error:
        _say(out, Failed(error))
        return 1
    except BrokenPipeError:
        return 1
    except Exception as problem:
        # A foreign exception's message can quote a row: only its type is passed on.
        log.error("snapshot worker failed", exc_info=True)
        message = f"a snapshot worker failed unexpectedly ({type(problem).__name__})"
        _say(out, Failed(CdcError("internal_error", message)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
