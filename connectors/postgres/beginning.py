"""The beginning of a load: its intent, its topics, and the spool from a frontier on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Final

import structlog

from cdc.control import ControlState, KeyValue, LoadRecord, TableRecord, schema_key_value
from cdc.errors import CdcError, LogError, SourceRefused
from cdc.failpoints import failpoint
from cdc.load import LoadKey
from cdc.names import TableId
from cdc.position import snapshot_position
from cdc.states import ABANDONED, COPYING, ERRORED, READY, WAITS
from connectors.postgres.aside import ends_load, set_aside
from connectors.postgres.capture_settings import CaptureSettings
from connectors.postgres.load_barrier import Barrier
from connectors.postgres.load_catalog import pub_rel_of
from connectors.postgres.load_state import Load, LoadBook, LoadPorts
from connectors.postgres.load_topics import create_topics, intended_load, topics_of
from connectors.postgres.silent import width_of
from connectors.postgres.whole_loads import NOT_RESUMED

log = structlog.get_logger(__name__)

#: A table that is rewritten or altered again and again is given up after so many loads.
_MOST_ATTEMPTS: Final = 5
#: How often a quiet server is made to tell how far it is, seconds.
_HURRY_S: Final = 0.5


class Beginning:
    """Begins loads, for the first time or anew; only at borders.

    Args:
        settings: Of the capture.
        ports: What to work with.
        book: Of the loads.
        loads: All that are under way, by table; kept up to date.
        control: The source's control topic.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        ports: LoadPorts,
        book: LoadBook,
        loads: dict[TableId, Load],
        control: ControlState,
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._book = book
        self._loads = loads
        self._numbers: dict[TableId, int] = {}
        self._hurried = 0.0
        # Of the loads that were intended since the last one was asked.
        self._older = Barrier(ports.catalog)
        #: Loads of this connection that could not be done, and why.
        self.given_up: dict[LoadKey, CdcError] = {}
        for record in control.loads.values():
            self.count(record)

    def count(self, record: LoadRecord) -> None:
        """A load of this number exists: later ones have higher numbers."""
        self._numbers[record.id] = max(record.load, self._numbers.get(record.id, 0))

    def write_intents(self, loads: Sequence[Load]) -> None:
        """Before anything of it exists; from here on, topics of that name count as ours."""
        if not loads:
            return
        if taken := self._ports.admin.topic_ids(topics_of(load.record for load in loads)):
            raise LogError(
                "topic_exists",
                f"topic {min(taken)} exists already, and is not of this source's log",
                remedy="delete the topic if nobody needs it",
            )
        self._book.commit([record for load in loads for record in self._book.now(load)])
        for load in loads:
            load.written = True

    def begin_spooling(self, loads: Sequence[Load]) -> None:
        """Topics, schemas, then: from this frontier on, events go to the spools."""
        ports = self._ports
        records = [load.record for load in loads]
        # Left by an attempt that got no further; the intent says that they are ours.
        ports.admin.delete_topics(topics_of(records))
        definitions, refused = ports.catalog.definitions([record.id for record in records])
        for load in loads:
            if load.record.id in refused:
                self.give_up(load, refused[load.record.id])
        loads = [load for load in loads if load.record.id not in refused]
        records = [load.record for load in loads]
        try:
            ids = create_topics(
                ports.admin,
                self._settings,
                [
                    (
                        record,
                        self._book.records[record.id].partitions,
                        definitions[record.id].key is None,
                    )
                    for record in records
                ],
                ports.keep_alive,
            )
        except LogError as error:
            if error.code != "topic_collision" or all(record.hashed for record in records):
                raise
            self._take_other_names(loads)
            return
        failpoint("after_topics")
        point = ports.writer.end_lsn
        below = snapshot_position(ports.writer.position.epoch, point)
        changed: list[KeyValue] = []
        for load in loads:
            record, definition = load.record, definitions[load.record.id]
            load.schema = definition.schema(record.load, below)
            changed += [
                schema_key_value(load.schema),
                *self._book.now(
                    load,
                    state=COPYING,
                    topic_id=ids[record.topic],
                    consistent_point=point,
                    filenode=definition.filenode,
                ),
            ]
            table = self._book.records[record.id]
            if table.state != READY:
                if table.state != ERRORED:
                    table = dataclasses.replace(table, topic_id=ids[record.topic])
                table = self._book.records[record.id] = dataclasses.replace(
                    table,
                    relid=definition.relid,
                    filenode=definition.filenode,
                    pub_rel=pub_rel_of(definition),
                    types=dict(definition.types) or None,
                )
                changed.append(table.to_key_value())
        failpoint("before_spooling")
        self._book.commit(changed)
        failpoint("after_spooling")
        for load in loads:
            self.spool(load)
        log.info("loading", tables=len(loads), spooled_from=f"{point:X}")

    def _take_other_names(self, loads: Sequence[Load]) -> None:
        """Kafka takes one of the names for another topic's: hashed names, at the next border."""
        records = [load.record for load in loads]
        control = [record for load in loads for record in self._book.now(load, state=ABANDONED)]
        for record in records:
            following = self._loads[record.id] = self.intended(
                record.id, hashed=True, priority=record.priority
            )
            control += self._book.now(following)
            following.written = True
        self._book.commit(control)
        # None of these names was taken before: those that are there now are ours.
        self._ports.admin.delete_topics(topics_of(records))

    def spool(self, load: Load) -> None:
        """From here on, events of the table go to the load's spool."""
        schema, spool = load.schema, load.record.spool
        if schema is None or spool is None:
            raise LogError("schema_missing", "control has no schema of it", table=str(load.key[0]))
        self._ports.router.spool(schema.relid, spool, schema.id)
        table, filenode = self._book.records[load.record.id], load.record.filenode
        # That of a table that is served is judged by what was seen while it was.
        if filenode is not None and table.state != READY:
            self._ports.filenodes[schema.relid] = filenode
            self._ports.widths[schema.relid] = width_of(table)

    def begin_again(self, load: Load) -> None:
        """Abandon a load, and intend the next one of its table, unless that helps nothing."""
        error, record = load.failed, load.record
        if error is None:
            return
        if ends_load(error):
            self.give_up(load, error)
            return
        # Who ends capture says nothing of the table.
        attempt = record.attempt + (error.code != NOT_RESUMED)
        if attempt >= _MOST_ATTEMPTS:
            many = SourceRefused(
                "load_not_possible",
                f"{attempt} loads in a row had to begin anew; the last time: {error.message}",
                remedy="leave the table's form alone, and do not truncate it, while it is loaded",
            )
            self.give_up(load, many)
            return
        log.warning(
            "the load begins anew",
            table=self._settings.name_of(record.id),
            code=error.code,
            reason=error.message,
        )
        following = self.intended(record.id, attempt, priority=record.priority)
        self._abandon(load, following)

    def hold(self, load: Load) -> None:
        """Let a load that is intended, of a table that was there before, wait for what was open.

        What a transaction did before a label was renamed, or a type altered, is printed as it was
        then, however late it commits. And the stream has to pass the catalog as it is then: the
        load takes the table's form from there, and events of an older form would end it again.
        So would be missed what a publication that lacked operations did not send.
        """
        if load.record.load > 1 or self._book.records[load.record.id].state == ERRORED:
            if self._older.asked:
                self._older = Barrier(self._ports.catalog)
            load.older = self._older

    def may_begin(self, load: Load) -> bool:
        """Whether a load that is intended can begin."""
        if load.older is not None:
            if not load.older.passed():
                return False
            load.older = None
            load.not_before = self._ports.catalog.insert_lsn()
        return self._ports.writer.end_lsn >= load.not_before

    def hurry(self) -> None:
        """Make a quiet server tell how far it is, if a load waits for nothing else."""
        now = time.monotonic()
        waits = any(
            load.older is None and not self.may_begin(load) for load in self._loads.values()
        )
        if waits and now - self._hurried > _HURRY_S:
            self._hurried = now
            self._ports.catalog.flush_wal()
            self._ports.ask_position()

    def cancel(self, load: Load) -> None:
        """Abandon a load of a table that stays as it is."""
        log.warning("the load is cancelled", table=self._settings.name_of(load.record.id))
        table = self._book.records[load.record.id]
        if table.state == ERRORED:
            # Or the next one would begin by itself.
            self._tell_of(dataclasses.replace(table, aside=WAITS))
        self._abandon(load, None)

    def give_up(self, load: Load, error: CdcError) -> None:
        """Abandon a load that cannot be done; a table that is served without it stays so."""
        record = load.record
        table, name = self._book.records[record.id], self._settings.name_of(record.id)
        log.error("the load cannot be done", table=name, code=error.code, reason=error.message)
        self.given_up[load.key] = error
        if table.state != READY:
            self._tell_of(set_aside(table, error, self._ports.writer.position, name))
        self._abandon(load, None)

    def try_again(self, due: Sequence[TableId]) -> None:
        """Intend loads of tables that were set aside, if they can be captured again."""
        if not due:
            return
        refused = dict(self._ports.publish(due))
        loads = {id: self.intended(id) for id in due if id not in refused}
        taken = self._ports.admin.topic_ids(topics_of(load.record for load in loads.values()))
        for id, load in loads.items():
            if topics := taken.keys() & topics_of([load.record]):
                refused[id] = SourceRefused(
                    "topic_exists",
                    f"topic {min(topics)} exists already, and is not of this source's log",
                    remedy="delete the topic if nobody needs it",
                )
            else:
                self._loads.setdefault(id, load)
        for id, error in refused.items():
            self._still_aside(id, error)

    def _still_aside(self, id: TableId, refused: CdcError) -> None:
        """A table that was set aside cannot be captured yet, maybe for another reason."""
        before, name = self._book.records[id], self._settings.name_of(id)
        now = set_aside(before, refused, self._ports.writer.position, name)
        now = dataclasses.replace(now, aside=before.aside)
        if now != before:
            log.error("still set aside", table=name, code=refused.code, reason=refused.message)
            self._tell_of(now)

    def _tell_of(self, table: TableRecord) -> None:
        """Change a table with the next commit."""
        self._book.records[table.id] = table
        self._ports.router.control.append(table.to_key_value())

    def _abandon(self, load: Load, following: Load | None) -> None:
        record = load.record
        self.leave(load)
        control = self._book.now(load, state=ABANDONED)
        if following is None:
            del self._loads[record.id]
        else:
            self._loads[record.id] = following
            control += self._book.now(following)
            following.written = True
        self._book.commit(control)
        self.remove_topics(record)

    def leave(self, load: Load) -> None:
        """From here on nothing is copied or spooled for a load."""
        self._ports.copier.cancel(load.key)
        if load.schema is not None:
            self._ports.router.end_spool(load.schema.relid)

    def remove_topics(self, record: LoadRecord) -> None:
        """Delete the topics of a load that control says is abandoned."""
        topics = topics_of([record])
        for topic in topics:
            self._ports.writer.forget(topic)
        self._ports.admin.delete_topics(topics)

    def intended(
        self, id: TableId, attempt: int = 0, *, hashed: bool = False, priority: int = 0
    ) -> Load:
        """The next load of a table, of which nothing exists yet."""
        number = self._numbers[id] = self._numbers.get(id, 0) + 1
        record = intended_load(
            self._settings, id, number, attempt=attempt, hashed=hashed, priority=priority
        )
        load = Load(record)
        self.hold(load)
        return load
