"""Copies one chunk: COPY, the encoder that the stream has, Kafka transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from cdc.batch_encoder import BatchEncoder
from cdc.counted import CountedEncoder, encoder_of
from cdc.envelope import BadValue, Headers, Origin, TransactionFields
from cdc.errors import LogError, ProtocolViolation, SourceRefused
from cdc.frontier import Ends
from cdc.load import LoadTask
from cdc.log.partition import partition_of
from cdc.log.producer import TransactionalProducer
from cdc.position import MAX_ORDINAL
from snapshots.copytext import Column, parse_columns
from snapshots.messages import Done
from snapshots.rate import RateLimit
from snapshots.source import BATCH_ROWS, ChunkCopy, Connection, end_chunk, snapshot_of

#: A Kafka transaction is committed after so many rows, bytes of COPY text, or seconds.
MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_SECONDS: Final = 10.0


class TaskWriter:
    """Copies chunks of one task.

    Args:
        task: The table; its ``left`` does not matter.
        epoch: Of the source's history.
        origin: What every envelope says of where it comes from.
        producer: After its ``init``, with the limit of the task's topic.
        rate: The worker's share of the rows per second.
        look: Called for each batch; may change the rate.
    """

    def __init__(
        self,
        task: LoadTask,
        epoch: int,
        origin: Origin,
        producer: TransactionalProducer,
        rate: RateLimit,
        look: Callable[[], None],
    ) -> None:
        self._task = task
        self._epoch = epoch
        self._producer = producer
        self._rate = rate
        self._look = look
        self._encoder = encoder_of(task.schema, origin)
        self._batches = BatchEncoder(self._encoder)
        self._open_rows = 0
        self._open_bytes = 0
        self._opened = 0.0

    def copy(self, connection: Connection, chunk: int, written: Callable[[int], None]) -> Done:
        """Copy a chunk inside of its transaction, and end that as soon as the rows are read.

        Args:
            connection: After ``begin_chunk``.
            chunk: Which one.
            written: Told, after a Kafka transaction, how many rows of the chunk are committed.

        Raises:
            CdcError: Nothing of the open Kafka transaction is committed.
        """
        table = str(self._task.schema.id)
        try:
            return self._copy(connection, chunk, written)
        except BadValue as problem:
            raise SourceRefused(
                "bad_value",
                f"a value cannot be captured: {problem}",
                table=table,
                remedy="correct the row at the source, or leave out the table",
            ) from None
        except LogError as error:
            if error.code == "record_too_large":
                raise SourceRefused(
                    error.code, error.message, table=table, remedy=error.remedy
                ) from None
            error.table = error.table or table
            raise

    def _copy(self, connection: Connection, chunk: int, written: Callable[[int], None]) -> Done:
        began = time.monotonic()
        task = self._task
        columns = len(task.schema.columns)
        load = self._transaction()
        snapshot = snapshot_of(connection) if task.schema.counted else None
        source = ChunkCopy(connection, task.schema, task.plan, chunk)
        rows, ends = 0, Ends()
        source.batch_rows = self._rate.batch_rows(BATCH_ROWS)
        for block in source.blocks():
            size, batch = len(block), parse_columns(block, columns)
            # A row can be large: what is not needed any more goes at once.
            del block
            count = len(batch[0])
            if count:
                if not self._open_rows:
                    self._producer.begin()
                    self._opened = time.monotonic()
                keys, values, headers = self._encoded(batch, load, rows)
                del batch
                self._send(keys, values, headers)
                del keys, values, headers
                rows += count
                self._open_rows += count
                self._open_bytes += size
            self._look()
            source.batch_rows = self._rate.batch_rows(BATCH_ROWS)
            if pause := self._rate.pause(count, time.monotonic()):
                time.sleep(pause)
            if self._is_full():
                self._commit(ends)
                written(rows)
        if rows != source.rows:
            raise ProtocolViolation(
                "bad_copy_data",
                f"COPY says that it sent {source.rows} rows, and {rows} came",
                table=str(task.schema.id),
            )
        end_chunk(connection)
        if self._open_rows:
            self._commit(ends)
        return Done(rows, ends, time.monotonic() - began, snapshot)

    def _is_full(self) -> bool:
        return self._open_rows > 0 and (
            self._open_rows >= MAX_ROWS
            or self._open_bytes >= MAX_BYTES
            or time.monotonic() - self._opened >= MAX_SECONDS
        )

    def _encoded(
        self, columns: Sequence[Column], load: TransactionFields, before: int
    ) -> tuple[list[bytes], list[bytes], list[Headers]]:
        """Keys, values and headers of the records of rows, of which so many came before."""
        encoder, count = self._encoder, len(columns[0])
        if not isinstance(encoder, CountedEncoder):
            keys, values = self._batches.snapshot_rows(columns, load)
            return keys, values, [encoder.headers(load.snapshot_position())] * count
        if before + count >= MAX_ORDINAL:
            raise SourceRefused(
                "too_many_rows",
                f"a table without a key can have {MAX_ORDINAL} rows",
                table=str(self._task.schema.id),
                remedy="add a primary key",
            )
        rows = enumerate(zip(*columns, strict=True), before + 1)
        records = [encoder.loaded(row, load, n) for n, row in rows]
        return [r[0] for r in records], [r[1] for r in records], [r[2] for r in records]

    def _send(self, keys: list[bytes], values: list[bytes], headers: list[Headers]) -> None:
        topic, partitions = self._task.topic, self._task.partitions
        to = [partition_of(key, partitions) for key in keys] if partitions > 1 else [0] * len(keys)
        if not self._producer.send_all(topic, to, keys, values, headers):
            for partition, key, value, its in zip(to, keys, values, headers, strict=True):
                self._producer.send(topic, partition, key, value, its)

    def _commit(self, ends: Ends) -> None:
        for topic, partitions in self._producer.ends().items():
            ends.setdefault(topic, {}).update(partitions)
        self._producer.commit()
        self._open_rows, self._open_bytes = 0, 0

    def _transaction(self) -> TransactionFields:
        now_us = time.time_ns() // 1000
        below = self._task.spool_from - 1
        return TransactionFields(self._epoch, below, None, now_us, now_us // 1000, snapshot=True)
