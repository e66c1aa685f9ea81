"""What a Relation message says against the schema that we know: the same, the next one, or an end.

A load follows columns that are added, NULL in every row that was there before, and columns that
are dropped, as the table's policy says (``cdc.schema_policy``). Anything else ends its topic
before the transaction concerned (``SchemaDrift``), see ``aside``. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cdc.position import Position
from cdc.schema import Column, TableSchema, WireType
from cdc.schema_policy import Action, SchemaPolicy, action_on
from connectors.postgres.messages import Relation, RelationColumn
from connectors.postgres.silent import unpublished

_RESERVED_PREFIX = "_cdc_"
_IDENTITIES = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "USING INDEX"}


class SchemaDrift(Exception):
    """The table changed in a way that its topic does not follow; no message holds a value."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """What the catalog says of a column now.

    Args:
        number: attnum.
        type: ``format_type``.
        type_oid: atttypid.
        typmod: atttypmod.
        default: The default's expression, or None.
        filled: Rows from before the column hold a constant for it (atthasmissing).
        rewritten: The table was rewritten since its last check, as by a volatile default.
        wire: What a domain or an array comes to.
        unpublished: It is older than what the stream has shown, so it was there and not published.
        again: A column that the stream has not shown was dropped before this one was added: it
            may have been of the same name, and the event of that one.
    """

    number: int
    type: str
    type_oid: int
    typmod: int
    default: str | None
    filled: bool
    rewritten: bool
    wire: WireType | None = None
    unpublished: bool = False
    again: bool = False


#: What the catalog says of columns by these names; unknown ones are left out.
Ask = Callable[[Sequence[str]], Mapping[str, CatalogColumn]]


def not_followed(code: str, reason: str, policy: SchemaPolicy) -> SchemaDrift:
    """The end that a change comes to under a policy that does not follow it."""
    if action_on(code, policy) is Action.STOP:
        return SchemaDrift("schema_change", f"{reason}; schema_policy {policy} stops the table")
    return SchemaDrift(code, reason)


def next_schema(
    known: TableSchema,
    relation: Relation,
    ask: Ask,
    policy: SchemaPolicy,
    valid_from: Position,
) -> TableSchema:
    """The schema with which events of a relation are written; ``known`` if that is the same.

    Args:
        known: The newest version.
        relation: As the stream tells.
        ask: Asks the catalog, which may be ahead of the stream.
        policy: Of the table.
        valid_from: Position of the first event of the relation.

    Raises:
        SchemaDrift: The load's topic ends here.
    """
    try:
        return _Change(known, relation, policy).schema(ask, valid_from)
    except SchemaDrift as drift:
        raise not_followed(drift.code, drift.reason, policy) from None


def without_columns(
    known: TableSchema,
    gone: Sequence[Column],
    policy: SchemaPolicy,
    valid_from: Position,
) -> TableSchema:
    """The version after columns were dropped that the policy lets go.

    Args:
        known: The newest version.
        gone: Of its columns.
        policy: Of the table.
        valid_from: From where on they are gone.
    """
    kept = action_on("column_dropped", policy) is Action.KEEP
    left = [c if kept else dataclasses.replace(c, hidden=True) for c in gone]
    return dataclasses.replace(
        known,
        version=known.version + 1,
        columns=tuple(c for c in known.columns if c not in gone),
        dropped=(*known.dropped, *left),
        valid_from=valid_from,
    )


class _Change:
    """One relation against the schema that is known.

    Args:
        known: The newest version.
        relation: As the stream tells.
        policy: Of the table.

    Raises:
        SchemaDrift: No policy follows it.
    """

    def __init__(self, known: TableSchema, relation: Relation, policy: SchemaPolicy) -> None:
        self._known = known
        self._policy = policy
        self._check_table(relation)
        self._order = [c.name for c in relation.columns]
        names = set(self._order)
        self._left = [c for c in known.columns if c.name in names]
        self._gone = [c for c in known.columns if c.name not in names]
        there = set(known.column_names)
        self._new = [c for c in relation.columns if c.name not in there]
        self._check_columns(relation)
        self._check_key(relation)
        self._check_names()

    def schema(self, ask: Ask, valid_from: Position) -> TableSchema:
        """The version that it comes to.

        Raises:
            SchemaDrift: The load's topic ends here.
        """
        known = self._known
        if not self._gone and not self._new:
            return known
        if known.counted:
            # Its rows are known by their whole JSON.
            names = [c.name for c in self._gone] + [c.name for c in self._new]
            raise SchemaDrift("columns_changed", f"{', '.join(names)} came or went")
        # Where none is gone, the new ones are all that there is to know.
        new = [c.name for c in self._new]
        catalog = ask([*known.column_names, *new] if self._gone else new)
        if self._gone:
            self._check_left(catalog)
            self._check_gone(catalog)
            known = without_columns(known, self._gone, self._policy, valid_from)
        columns = {column.name: column for column in known.columns}
        taken = {column.id for column in (*known.columns, *known.dropped)}
        for added in self._new:
            columns[added.name] = self._added(added, catalog.get(added.name), taken)
            taken.add(columns[added.name].id)
        return dataclasses.replace(
            known,
            version=self._known.version + 1,
            columns=tuple(columns[name] for name in self._order),
            valid_from=valid_from,
        )

    # --- inside ---

    def _check_table(self, relation: Relation) -> None:
        known = self._known
        name = (relation.namespace or "pg_catalog", relation.name)
        if name != (known.schema, known.table):
            raise SchemaDrift("table_renamed", f"the table was renamed to {name[0]}.{name[1]}")
        if relation.relid != known.relid:
            raise SchemaDrift("table_recreated", "the table was dropped and created again")
        if relation.identity != known.identity:
            raise SchemaDrift(
                "identity_changed",
                f"the replica identity was changed from {_IDENTITIES[known.identity]} to "
                f"{_IDENTITIES[relation.identity]}",
            )

    def _check_columns(self, relation: Relation) -> None:
        """What is left has its types and its order; what is new comes last, or for what is gone."""
        now = {c.name: c for c in relation.columns}
        order = [c.name for c in relation.columns if c.name in self._known.column_names]
        for place, known in zip(order, self._left, strict=True):
            if place != known.name:
                raise SchemaDrift("columns_changed", f"column {known.name} is at another place now")
            found = now[known.name]
            if (found.type_oid, found.typmod) != (known.type_oid, known.typmod):
                raise SchemaDrift(
                    "column_retyped",
                    f"the type of column {known.name} was changed from {known.type}",
                )
        last = relation.columns[len(self._left) :]
        if not self._gone and list(last) != self._new:
            raise SchemaDrift("columns_changed", "a new column is not the last one")

    def _check_key(self, relation: Relation) -> None:
        in_identity = {c.name for c in relation.columns if c.in_key}
        lost = set(self._known.key) - in_identity
        if self._known.identity != "f":
            lost |= in_identity - set(self._known.key)
        if lost:
            raise SchemaDrift(
                "key_changed", f"the key was changed: {', '.join(sorted(lost))} is not as before"
            )

    def _check_names(self) -> None:
        again = {c.name for c in (*self._gone, *self._known.dropped)}
        for new in self._new:
            if new.name.lower().startswith(_RESERVED_PREFIX):
                raise SchemaDrift(
                    "reserved_column", f"the new column {new.name} has a name that we keep"
                )
            if new.name in again:
                raise SchemaDrift(
                    "column_replaced",
                    f"column {new.name} has the name of one that was dropped or renamed before",
                )

    def _check_left(self, catalog: Mapping[str, CatalogColumn]) -> None:
        """Names that are left stand for the columns that they stood for.

        A column that is gone does not come back: if the catalog has these names for the numbers
        that we know, the stream had them, too.
        """
        for column in self._left:
            found = catalog.get(column.name)
            if found is None or (found.number != column.id and not column.hidden):
                raise SchemaDrift(
                    "column_replaced",
                    f"column {column.name} is another one, or gone, by now",
                )

    def _check_gone(self, catalog: Mapping[str, CatalogColumn]) -> None:
        """What is gone was dropped or, if the policy does not mind, renamed."""
        numbers = {found.number: name for name, found in catalog.items()}
        for column in self._gone:
            found = catalog.get(column.name)
            if found is not None and found.number == column.id:
                raise SchemaDrift(
                    "columns_changed", f"column {column.name} is there, and is not published"
                )
            if (name := numbers.get(column.id)) is not None:
                self._let_pass(
                    "column_renamed", f"column {column.name} was renamed to {name}", Action.HIDE
                )
            else:
                self._let_pass(
                    "column_dropped",
                    f"column {column.name} was dropped",
                    Action.KEEP,
                    Action.DROP,
                )

    def _added(self, new: RelationColumn, found: CatalogColumn | None, taken: set[int]) -> Column:
        same_type = found and (found.type_oid, found.typmod) == (new.type_oid, new.typmod)
        if found is None or not same_type or found.again:
            raise SchemaDrift(
                "column_unknown",
                f"the new column {new.name} was dropped, renamed or retyped before it was captured",
            )
        if found.unpublished:
            self._let_pass("column_default", unpublished(new.name), Action.HIDE)
        code, how = "column_added", ""
        if found.filled or found.default is not None:
            code, how = "column_default", " with a default"
        elif found.rewritten:
            code, how = "table_rewritten", " and the table rewritten"
        reason = f"column {new.name} was added{how}"
        if how:
            reason += ": rows that were there before may hold a value that no event tells"
        action = self._let_pass(code, reason, Action.FOLLOW, Action.HIDE)
        return Column(
            id=found.number if found.number not in taken else max(taken) + 1,
            name=new.name,
            type_oid=new.type_oid,
            typmod=new.typmod,
            type=found.type,
            # Rows of earlier versions have no value of it, whatever the catalog says.
            not_null=False,
            default=None,
            wire=found.wire,
            hidden=action is Action.HIDE,
        )

    def _let_pass(self, code: str, reason: str, *actions: Action) -> Action:
        action = action_on(code, self._policy)
        if action not in actions:
            raise SchemaDrift(code, reason)
        return action
