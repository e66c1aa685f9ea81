"""Readers of the log for helpers that ask again and again until something is so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.errors import CdcError
from cdc.log.reader import LogReader


class Readers:
    """Opens readers; during a wait, one for all its questions.

    To connect costs both sides more than to read. For longer than a wait no reader is kept: topics
    are deleted and made again by the tests.
    """

    def __init__(self, bootstrap, topic_prefix):
        self._bootstrap = bootstrap
        self._prefix = topic_prefix
        # Each thread waits for itself.
        self._waiting = threading.local()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Keep the reader that is opened first until the end of the block."""
        if hasattr(self._waiting, "reader"):
            yield
            return
        self._waiting.reader = None
        try:
            yield
        finally:
            reader = self._waiting.reader
            del self._waiting.reader
            if reader is not None:
                reader.close()

    @contextmanager
    def open(self) -> Iterator[LogReader]:
        if not hasattr(self._waiting, "reader"):
            with LogReader(self._bootstrap, topic_prefix=self._prefix) as reader:
                yield reader
            return
        if self._waiting.reader is None:
            self._waiting.reader = LogReader(self._bootstrap, topic_prefix=self._prefix)
        try:
            yield self._waiting.reader
        except CdcError:
            # It may be of a broker that is no more.
            self._waiting.reader.close()
            self._waiting.reader = None
            raise
