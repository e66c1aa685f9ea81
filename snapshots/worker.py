"""The process that copies chunks of tables into their topics: ``python -m snapshots.worker``.

Talks to its copier over stdin and stdout (messages.py), logs to stderr, and dies with its
parent. One session at the source, one fenced producer, memory for some batches of rows; after
an error it ends, and its successor fences it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import BinaryIO

import structlog

from cdc.errors import CdcError, LogError
from cdc.load import LoadTask
from cdc.log.admin import LogAdmin, TopicInfo
from cdc.log.producer import TransactionalProducer
from cdc.logging import configure_logging
from cdc.names import snapshot_transactional_id
from snapshots.commands import Commands
from snapshots.messages import Blocked, CopyChunk, Failed, Message, Ready, RowsWritten, WorkerSetup
from snapshots.rate import RateLimit
from snapshots.source import Connection, begin_chunk, end_chunk, lock_holders, open_session
from snapshots.writer import TaskWriter

log = structlog.get_logger(__name__)

#: For a producer whose first topic is not known yet.
BROKER_DEFAULT_MAX_BYTES = 1_048_588

#: What waits for the broker. More is no quicker: memory that is used again soon is in the caches.
_QUEUE_BYTES = 8 * 1024 * 1024

_PR_SET_PDEATHSIG = 1


class Server:
    """Serves one copier, from the setup to the end of its commands.

    Args:
        setup: Of this worker.
        commands: After the setup was read.
        out: Takes the messages.
        rate: Set by the commands.
    """

    def __init__(
        self, setup: WorkerSetup, commands: Commands, out: BinaryIO, rate: RateLimit
    ) -> None:
        self._setup = setup
        self._commands = commands
        self._out = out
        self._rate = rate
        self._admin = LogAdmin(setup.bootstrap_servers, setup.log_options)
        self._topics: dict[str, TopicInfo] = {}
        self._producer: TransactionalProducer | None = None
        self._connection: Connection | None = None

    def serve(self) -> None:
        """Copy chunks until there are no more commands.

        Raises:
            CdcError: What went wrong; the process has to end.
        """
        topic, limit = self._setup.topic, BROKER_DEFAULT_MAX_BYTES
        if topic is not None and (info := self._admin.describe_all([topic]).get(topic)):
            limit = info.max_message_bytes
        self._register(limit)
        _say(self._out, Ready())
        task, writer = None, None
        for command in self._commands:
            if isinstance(command, LoadTask):
                task, writer = command, None
                continue
            if task is None:
                raise ValueError("a chunk without its task")
            if writer is None:
                writer = self._writer(task)
            self._copy(task, writer, command)
        # Only now: after an error the copier is told first, and nothing may take its time.
        if self._connection is not None:
            self._connection.close()
        if self._producer is not None:
            self._producer.close()

    def _copy(self, task: LoadTask, writer: TaskWriter, command: CopyChunk) -> None:
        connection = self._session()
        try:
            begin_chunk(connection, task)
        except CdcError as error:
            if error.code != "lock_not_granted":
                raise
            end_chunk(connection)
            blocked = Blocked(lock_holders(connection, task))
            # Chunks of the same table that wait here would only wait for the same lock.
            for _ in range(1 + self._commands.drop_chunks()):
                _say(self._out, blocked)
            return
        _say(
            self._out,
            writer.copy(connection, command.chunk, lambda n: _say(self._out, RowsWritten(n))),
        )

    def _session(self) -> Connection:
        if self._connection is None:
            setup = self._setup
            name = f"cdc {setup.source} snapshot {setup.number}"
            self._connection = open_session(setup.conninfo, name)
        return self._connection

    def _writer(self, task: LoadTask) -> TaskWriter:
        setup = self._setup
        info = self._describe(task)
        if self._producer is None or self._producer.max_message_bytes != info.max_message_bytes:
            self._register(info.max_message_bytes)
        assert self._producer is not None  # noqa: S101 - for the type checker
        return TaskWriter(
            task, setup.epoch, setup.origin, self._producer, self._rate, self._commands.look
        )

    def _describe(self, task: LoadTask) -> TopicInfo:
        """The task's topic, which has to be as the load made it.

        Asked together with those of the tasks that wait: small tables come by the dozen.
        """
        if task.topic not in self._topics:
            self._topics = self._admin.describe_all({task.topic, *self._commands.topics()})
        info = self._topics.get(task.topic)
        if info is None or info.partitions != task.partitions:
            what = "is not on the broker" if info is None else "has other partitions"
            raise LogError(
                "topic_differs",
                f"topic {task.topic} of the load {what}",
                table=str(task.schema.id),
                remedy="load the table again",
            )
        return info

    def _register(self, max_message_bytes: int) -> None:
        """Fence the predecessor, for topics of this limit."""
        setup = self._setup
        if self._producer is not None:
            self._producer.close()
        self._producer = TransactionalProducer(
            setup.bootstrap_servers,
            snapshot_transactional_id(setup.project, setup.source, setup.number),
            setup.log_options,
            max_message_bytes=max_message_bytes,
            queue_bytes=_QUEUE_BYTES,
        )
        self._producer.init()


def _say(out: BinaryIO, message: Message) -> None:
    out.write(message.to_line())
    out.flush()


def _where(problem: BaseException) -> str:
    frames = traceback.extract_tb(problem.__traceback__)
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))


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
    rate = RateLimit()
    commands = Commands(0, rate)
    try:
        setup = commands.setup()
        if setup is not None:
            configure_logging(f"snapshot:{setup.source}.{setup.number}")
            Server(setup, commands, out, rate).serve()
    except CdcError as error:
        _say(out, Failed(error))
        return 1
    except BrokenPipeError:
        return 1
    except Exception as problem:  # noqa: BLE001 - the outermost frame
        # A foreign exception's message can quote a row: only its type is passed on.
        log.error("snapshot worker failed", kind=type(problem).__name__, at=_where(problem))
        message = f"a snapshot worker failed unexpectedly ({type(problem).__name__})"
        _say(out, Failed(CdcError("internal_error", message)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
