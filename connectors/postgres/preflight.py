"""Start checks of a source, made before anything is created.

``inspect_source`` reads the facts, ``find_problems`` judges them (pure), ``preflight`` does both
and raises one error that lists everything, so that a person mends it all in one go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from cdc.errors import CdcError, EnvironmentProblem, SourceRefused
from cdc.names import TableId, quote_ident, quote_literal
from connectors.postgres.catalog import (
    NO_KEYS,
    TableDefinition,
    read_tables,
)
from connectors.postgres.publication import (
    PublicationInfo,
    create_sql,
    differences,
    inspect_publication,
    members,
    quote_table,
)
from connectors.postgres.publishing import Publishing
from connectors.postgres.server import ServerInfo, server_info
from connectors.postgres.slot import SlotInfo, inspect_slot
from connectors.postgres.table_checks import Finding, table_problems

OLDEST_VERSION = 140000
_NOTHING = "nothing was created"


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What ``inspect_source`` read: server, tables, publication and slot (None if absent).

    ``refused`` is what ``preflight`` found of tables that only match a pattern.
    """

    server: ServerInfo
    tables: dict[TableId, TableDefinition]
    publication: PublicationInfo | None
    slot: SlotInfo | None
    refused: Mapping[TableId, Sequence[Finding]] = field(default_factory=dict)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know although nothing is refused."""
        found = [
            f"{table.id}: generated columns are not replicated and are left out: "
            + ", ".join(table.generated_columns)
            for table in self.tables.values()
            if table.generated_columns
        ]
        found += [
            f"{table.id}: its own rows are captured; those of tables that inherit from it come "
            "under their own names, if cdc.yaml names them"
            for table in self.tables.values()
            if table.children and table.kind == "r"
        ]
        found += [
            f"{table.id}: the publication has only the rows where {table.row_filter}"
            for table in self.tables.values()
            if table.row_filter is not None
        ]
        if self.server.encoding == "SQL_ASCII":
            found.append(
                "server: the database's encoding is SQL_ASCII; a value that is not UTF-8 will "
                "set its table aside"
            )
        return tuple(found)


def inspect_source(
    connection: psycopg.Connection[Any],
    tables: Sequence[TableId],
    publication: str,
    slot: str,
    keys: Mapping[TableId, tuple[str, ...]] = NO_KEYS,
) -> SourceFacts:
    """Read all facts that the checks need.

    Raises:
        CdcError: As ``failures.server_error``.
    """
    return SourceFacts(
        server=server_info(connection),
        tables=read_tables(connection, tables, publication, keys),
        publication=inspect_publication(connection, publication),
        slot=inspect_slot(connection, slot),
    )


def preflight(
    connection: psycopg.Connection[Any],
    *,
    tables: Sequence[TableId],
    publication: str,
    manage: bool,
    slot: str,
    own_slot: bool = False,
    matched: Sequence[TableId] = (),
    keys: Mapping[TableId, tuple[str, ...]] = NO_KEYS,
) -> SourceFacts:
    """Refuse a source that cannot be captured as it is.

    Args:
        connection: As from ``client.connect_sql``.
        tables: The tables of cdc.yaml.
        publication: Its name.
        manage: We may create it; otherwise it must be there as needed.
        slot: The slot's name.
        own_slot: A slot of that name, if there is one, is known to be ours.
        matched: Tables that match a pattern; what is wrong with one of them refuses only it, as
            with every table that is there if the publication is not ours.
        keys: That cdc.yaml gives.

    Raises:
        SourceRefused: Lists all findings.
        EnvironmentProblem: The same, if the server or permissions alone are at fault.
        CdcError: As ``failures.server_error``.
    """
    facts = inspect_source(connection, [*tables, *matched], publication, slot, keys)
    publishing = Publishing(publication, facts.publication, manage, {*tables, *matched})
    refused = {}
    # Of a publication that we make, nothing is made while a table is not as it has to be. One of
    # somebody else publishes its tables already, and what is wrong with one keeps only it back.
    alone = matched if manage else [*matched, *(id for id in tables if id in facts.tables)]
    for id in alone:
        found = table_findings(id, facts.tables.get(id), facts.server.role, publishing)
        if not found and id in matched:
            found = list(_unpublished(facts, id, publishing))
        if found:
            refused[id] = found
    findings = find_problems(
        facts,
        tables=[id for id in (*tables, *matched) if id not in refused],
        publication=publication,
        manage=manage,
        slot=slot,
        own_slot=own_slot,
        more=set(matched).__contains__,
    )
    if findings:
        raise refusal(findings)
    return dataclasses.replace(facts, refused=refused)


def refusal(findings: Sequence[Finding], *, alone: bool = False) -> CdcError:
    """One error for all findings; the code is theirs if they agree, else ``source_refused``.

    Args:
        findings: At least one.
        alone: They are of one table that keeps nothing else back.
    """
    environment = all(finding.environment for finding in findings)
    kind: type[CdcError] = EnvironmentProblem if environment else SourceRefused
    codes = {finding.code for finding in findings}
    code = codes.pop() if len(codes) == 1 else "source_refused"
    if len(findings) == 1:
        (finding,) = findings
        return kind(
            code,
            finding.problem if alone else f"{finding.subject}: {finding.problem}; {_NOTHING}",
            table=finding.subject if finding.of_table else None,
            remedy=finding.remedy,
        )
    if alone:
        return kind(
            code,
            "; ".join(finding.problem for finding in findings),
            table=findings[0].subject,
            remedy=" ".join(finding.remedy for finding in findings),
        )
    lines = "\n".join(f"  {finding}" for finding in findings)
    return kind(
        code,
        f"{len(findings)} problems keep the source from being captured; {_NOTHING}:\n{lines}",
        remedy="mend each as written after its arrow, then start again",
    )


def find_problems(
    facts: SourceFacts,
    *,
    tables: Sequence[TableId],
    publication: str,
    manage: bool,
    slot: str,
    own_slot: bool = False,
    more: Callable[[TableId], bool] = lambda id: False,
) -> list[Finding]:
    """All findings, the server's first, then table by table in the order of ``tables``."""
    found = list(_server_problems(facts.server))
    found += _slot_problems(facts, slot, own_slot)
    publishing = Publishing(publication, facts.publication, manage, frozenset(tables))
    for table in tables:
        found += table_findings(table, facts.tables.get(table), facts.server.role, publishing)
    if facts.publication is None:
        found += _no_publication(facts, tables, publication, manage)
        return found
    # A table that cannot be published is told of by itself.
    wanted = [
        id
        for id in tables
        if (definition := facts.tables.get(id)) is not None and definition.kind in "rp"
        # Partitions of somebody else's need not be listed.
        if manage or not publishing.has(id, definition.ancestors)
    ]
    roots = [id for id in wanted if facts.tables[id].kind == "p"]
    differs = differences(facts.publication, wanted, managed=manage, partitioned=roots, more=more)
    found += [
        Finding("publication_differs", f"publication {publication}", problem, remedy)
        for problem, remedy in differs
    ]
    return found


def table_findings(
    table: TableId, definition: TableDefinition | None, role: str, publishing: Publishing
) -> list[Finding]:
    """What keeps one table from being captured.

    Args:
        table: Its name.
        definition: None: there is no such table.
        role: Ours.
        publishing: The publication.
    """
    if definition is None:
        return [
            Finding(
                "table_missing",
                str(table),
                "does not exist in the database (names are case-sensitive)",
                f"take {table} out of `tables` in cdc.yaml, or create it",
                of_table=True,
            )
        ]
    found = list(table_problems(definition, publishing))
    return found if definition.readable else [*found, no_select(definition, role)]


def not_published(table: TableId, publication: str) -> Finding:
    """The finding for a table that only its owner can publish, or only a person shall."""
    return Finding(
        "not_published",
        str(table),
        f"is not in the publication {publication}",
        f"let its owner run: ALTER PUBLICATION {quote_ident(publication)} ADD TABLE "
        f"{members([table])};",
        of_table=True,
    )


def _unpublished(facts: SourceFacts, table: TableId, publishing: Publishing) -> Iterator[Finding]:
    definition = facts.tables[table]
    if publishing.has(table, definition.ancestors):
        return
    # A publication that we make will hold it.
    if facts.publication is None and (not publishing.managed or definition.ours):
        return
    yield not_published(table, publishing.name)


def _server_problems(server: ServerInfo) -> Iterator[Finding]:
    def finding(code: str, problem: str, remedy: str) -> Finding:
        return Finding(code, "server", problem, remedy, environment=True)

    if server.version < OLDEST_VERSION:
        yield finding(
            "server_too_old",
            f"version {server.version // 10000} is not supported",
            "upgrade to PostgreSQL 14 or newer",
        )
    if server.standby:
        yield finding(
            "server_is_standby", "it is a standby", "name the primary as `host` in cdc.yaml"
        )
    if server.wal_level != "logical":
        yield finding(
            "wal_level",
            f"wal_level is {server.wal_level}, not logical",
            "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
        )
    if not server.replication:
        yield finding(
            "no_replication_role",
            f"the role {server.role} lacks the REPLICATION attribute",
            f"ALTER ROLE {quote_ident(server.role)} REPLICATION;",
        )
    if server.used_senders >= server.max_senders:
        yield finding(
            "no_free_sender",
            f"all {server.max_senders} WAL senders are in use",
            f"ALTER SYSTEM SET max_wal_senders = {server.max_senders + 4}; then restart the server",
        )


def _slot_problems(facts: SourceFacts, slot: str, own_slot: bool) -> Iterator[Finding]:
    server = facts.server
    if facts.slot is None:
        if server.used_slots >= server.max_slots:
            yield Finding(
                "no_free_slot",
                "server",
                f"all {server.max_slots} replication slots are in use",
                f"ALTER SYSTEM SET max_replication_slots = {server.max_slots + 4}; then restart "
                "the server; or drop an abandoned slot",
                environment=True,
            )
    elif not own_slot:
        yield Finding(
            "slot_exists",
            f"slot {slot}",
            "exists already and is not ours",
            "name another slot in cdc.yaml, or drop it if nobody needs it: "
            f"SELECT pg_drop_replication_slot({quote_literal(slot)});",
        )


def no_select(table: TableDefinition, role: str) -> Finding:
    """The finding for a table that our role cannot read."""
    return Finding(
        "no_select",
        str(table.id),
        f"the role {role} may not read it",
        f"GRANT USAGE ON SCHEMA {quote_ident(table.id.schema)} TO {quote_ident(role)}; "
        f"GRANT SELECT ON {quote_table(table.id)} TO {quote_ident(role)};",
        environment=True,
        of_table=True,
    )


def _no_publication(
    facts: SourceFacts, tables: Sequence[TableId], publication: str, manage: bool
) -> Iterator[Finding]:
    subject = f"publication {publication}"
    create = f"{create_sql(publication, tables)};"
    if not manage:
        yield Finding("publication_missing", subject, "does not exist", create)
        return
    server = facts.server
    if not server.may_create:
        yield Finding(
            "no_publication_right",
            subject,
            f"the role {server.role} may not create it",
            f"GRANT CREATE ON DATABASE {quote_ident(server.database)} TO "
            f"{quote_ident(server.role)}; or let an owner run: {create}",
            environment=True,
        )
    foreign = [
        table
        for table in tables
        if (definition := facts.tables.get(table)) is not None and not definition.ours
    ]
    if foreign:
        yield Finding(
            "no_publication_right",
            subject,
            f"only the owner of {', '.join(map(str, foreign))} may publish it, "
            f"and the role {server.role} is not",
            f"let an owner run: {create}",
            environment=True,
        )
