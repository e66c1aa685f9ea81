"""Random transactions on random tables, as SQL. Pure: whether a statement succeeds, Postgres says.

What is drawn knows the tables' columns and some keys that are there, nothing else. A statement
that the server refuses is left out by ``random_cases``, which tries each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.support.random_tables import Column, Identity, Table, columns, names
from tests.support.random_types import KINDS, literal

#: Texts of a key's columns.
Key = tuple[str, ...]
Keys = Mapping[str, Sequence[Key]]


@dataclass(frozen=True, slots=True)
class Step:
    """A statement.

    Args:
        sql: The statement.
        table: Name of the table that it alters.
        effect: What it makes of that table.
    """

    sql: str
    table: str | None = None
    effect: Callable[[Table], Table] | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A transaction's statements between its begin and its end.

    Args:
        steps: In order, savepoints among them.
        ending: ``commit``, ``rollback`` or ``prepare``.
    """

    steps: tuple[Step, ...]
    ending: str


SAVEPOINT, RELEASE, UNDO = "savepoint part", "release savepoint part", "rollback to savepoint part"


def where(table: Table, key: Key) -> str:
    """The condition that means one row."""
    pairs = zip(table.key_columns, key, strict=True)
    return " and ".join(f"{c.quoted} = {literal(text)}::{c.kind.sql}" for c, text in pairs)


# --- rows ---


@st.composite
def _row(draw: st.DrawFn, table: Table, given: Sequence[Column], keys: Sequence[Key]) -> str:
    again = draw(st.sampled_from(keys)) if keys and draw(st.integers(0, 2)) == 0 else None
    values = []
    for column in given:
        if again is not None and column.name in table.key:
            values.append(literal(again[table.key.index(column.name)]))
        else:
            values.append(draw(column.values))
    return f"({', '.join(values)})"


@st.composite
def _insert(draw: st.DrawFn, table: Table, keys: Sequence[Key]) -> list[Step]:
    given = [c for c in table.columns if c.name in table.key or draw(st.integers(0, 4)) > 0]
    rows = draw(st.lists(_row(table, given, keys), min_size=1, max_size=3))
    sql = f"insert into {table.quoted} ({_listed(given)}) values {', '.join(rows)}"
    match draw(st.integers(0, 3)):
        case 0:
            sql += " on conflict do nothing"
        case 1 if others := [c for c in given if c.name not in table.key]:
            sets = ", ".join(f"{c.quoted} = excluded.{c.quoted}" for c in others)
            sql += f" on conflict ({_listed(table.key_columns)}) do update set {sets}"
    return [Step(sql)]


def _listed(given: Sequence[Column]) -> str:
    return ", ".join(column.quoted for column in given)


@st.composite
def _bulk(draw: st.DrawFn, table: Table, keys: Sequence[Key]) -> list[Step]:
    """Many rows at once, where numbers are keys."""
    (first, *rest) = table.key_columns
    if first.kind.sql not in ("integer", "bigint", "numeric"):
        return draw(_insert(table, keys))
    others = [c for c in table.other_columns if draw(st.booleans())]
    given = [first, *rest, *others]
    start, count = draw(st.integers(100, 10_000)), draw(st.integers(20, 300))
    values = ["i", *(draw(column.values) for column in given[1:])]
    return [
        Step(
            f"insert into {table.quoted} ({_listed(given)}) select {', '.join(values)}"
            f" from generate_series({start}, {start + count}) i on conflict do nothing"
        )
    ]


@st.composite
def _sets(draw: st.DrawFn, table: Table, other: Sequence[Column]) -> str:
    chosen = draw(st.lists(st.sampled_from(other), min_size=1, max_size=3, unique_by=id))
    same = st.sampled_from([chosen[0].quoted, "default"])
    first = draw(chosen[0].values if draw(st.integers(0, 5)) else same)
    values = [first, *(draw(column.values) for column in chosen[1:])]
    return ", ".join(f"{c.quoted} = {v}" for c, v in zip(chosen, values, strict=True))


@st.composite
def _update(draw: st.DrawFn, table: Table, keys: Sequence[Key]) -> list[Step]:
    other = table.other_columns
    if not other:
        return draw(_rekey(table, keys))
    sets = draw(_sets(table, other))
    if not keys or draw(st.integers(0, 7)) == 0:
        return [Step(f"update {table.quoted} set {sets}")]
    return [
        Step(f"update {table.quoted} set {sets} where {where(table, draw(st.sampled_from(keys)))}")
    ]


@st.composite
def _rekey(draw: st.DrawFn, table: Table, keys: Sequence[Key]) -> list[Step]:
    """A key changes: to a new one, to one that was another's, along a chain, or two are swapped."""
    if not keys:
        return draw(_insert(table, keys))
    one, two = draw(st.sampled_from(keys)), draw(st.sampled_from(keys))
    key, other = table.key_columns, table.other_columns
    more = ", " + draw(_sets(table, other)) if draw(st.booleans()) and other else ""
    fresh = ", ".join(f"{column.quoted} = {draw(column.values)}" for column in key)
    to_one = ", ".join(
        f"{c.quoted} = {literal(text)}::{c.kind.sql}" for c, text in zip(key, one, strict=True)
    )
    begin = f"update {table.quoted} set "
    match draw(st.integers(0, 4)):
        case 0:
            return [
                Step(f"delete from {table.quoted} where {where(table, one)}"),
                Step(f"{begin}{to_one}{more} where {where(table, two)}"),
            ]
        case 1:
            return [
                Step(f"{begin}{fresh}{more} where {where(table, one)}"),
                Step(f"{begin}{to_one} where {where(table, two)}"),
            ]
        case 2 if len(key) == 1:
            return [
                Step(
                    f"{begin}{key[0].quoted} = case when {where(table, one)} then "
                    f"{literal(two[0])}::{key[0].kind.sql} else {literal(one[0])}::"
                    f"{key[0].kind.sql} end{more} where {where(table, one)} or {where(table, two)}"
                )
            ]
        case 3 if key[0].kind.sql in ("integer", "bigint", "numeric"):
            return [Step(f"{begin}{key[0].quoted} = {key[0].quoted} + 1")]
    return [Step(f"{begin}{fresh}{more} where {where(table, one)}")]


@st.composite
def _delete(draw: st.DrawFn, table: Table, keys: Sequence[Key]) -> list[Step]:
    if not keys or draw(st.integers(0, 15)) == 0:
        return [Step(f"delete from {table.quoted}")]
    key = draw(st.sampled_from(keys))
    gone = Step(f"delete from {table.quoted} where {where(table, key)}")
    if draw(st.booleans()):
        return [gone, *draw(_insert(table, [key]))]
    return [gone]


@st.composite
def _truncate(draw: st.DrawFn, table: Table, keys: Sequence[Key]) -> list[Step]:
    more = draw(st.sampled_from(["", " restart identity", " cascade"]))
    return [Step(f"truncate {table.quoted}{more}"), *draw(_insert(table, keys))]


# --- definitions ---


def _alter(table: Table, what: str, effect: Callable[[Table], Table] | None = None) -> Step:
    return Step(f"alter table {table.quoted} {what}", table.name, effect)


@st.composite
def _add_column(draw: st.DrawFn, table: Table) -> list[Step]:
    column = draw(columns([c.name for c in table.columns], added=True))
    default = ""
    match draw(st.integers(0, 3)):
        case 0:
            default = f" default {draw(column.kind.tame)}"
        case 1 if column.kind.volatile:
            default = f" default {column.kind.volatile}"
        case 2 if column.kind.sql == "boolean":
            default = " default (now() > '2000-01-01')"
    if default and draw(st.booleans()):
        default += " not null"
        column = replace(column, required=True)
    sql = f"add column {column.quoted} {column.kind.sql}{default}"
    return [_alter(table, sql, lambda t: replace(t, columns=(*t.columns, column)))]


@st.composite
def _drop_column(draw: st.DrawFn, table: Table, column: Column) -> list[Step]:
    steps = [_alter(table, f"drop column {column.quoted}", lambda t: t.without(column.name))]
    if draw(st.booleans()):
        again = replace(draw(columns(added=True)), name=column.name)
        sql = f"add column {again.quoted} {again.kind.sql}"
        steps.append(_alter(table, sql, lambda t: replace(t, columns=(*t.columns, again))))
    return steps


def _rename(table: Table, old: str, new: str) -> Step:
    was = Column(old, KINDS["text"]).quoted
    now = Column(new, KINDS["text"]).quoted

    def effect(table: Table) -> Table:
        found = [c for c in table.columns if c.name == old]
        return table.changed(old, replace(found[0], name=new)) if found else table

    return _alter(table, f"rename column {was} to {now}", effect)


#: What USING makes of a type's values.
_ALTERED = {"integer": "{} / 2", "bigint": "{} / 2", "text": "upper({})", "varchar": "upper({})"}


@st.composite
def _alteration(draw: st.DrawFn, table: Table) -> list[Step]:
    used = [column.name for column in table.columns]
    other = table.other_columns
    free = [column for column in table.columns if not column.pinned]
    action = draw(st.integers(0, 10))
    if action in (0, 1) or not other:
        return draw(_add_column(table))
    column = draw(st.sampled_from(other))
    match action:
        case 2:
            return draw(_drop_column(table, column))
        case 3 if free:
            return [_rename(table, draw(st.sampled_from(free)).name, draw(names(used)))]
        case 4 if len(swapped := [c.name for c in free if c in other]) > 1:
            one, two = draw(st.permutations(swapped))[:2]
            between = draw(names(used))
            pairs = ((one, between), (two, one), (between, two))
            return [_rename(table, old, new) for old, new in pairs]
        case 5 | 6 if able := [c for c in free if c.kind.becomes]:
            column = draw(st.sampled_from(able))
            kind = KINDS.get(draw(st.sampled_from(column.kind.becomes)), KINDS["text"])
            using = _ALTERED.get(column.kind.sql, "{}").format(column.quoted)
            if draw(st.booleans()):
                # The same type, so that nothing tells of it, with other values.
                kind = column.kind
            sql = f"alter column {column.quoted} type {kind.sql} using ({using})::{kind.sql}"
            new = replace(column, kind=kind)
            return [_alter(table, sql, lambda t: t.changed(column.name, new))]
        case 7:
            default = draw(st.just("drop default") | column.values.map("set default {}".format))
            return [_alter(table, f"alter column {column.quoted} {default}")]
        case 8:
            new = replace(column, required=not column.required)
            verb = "set" if new.required else "drop"
            effect = lambda t: t.changed(column.name, new)  # noqa: E731
            return [_alter(table, f"alter column {column.quoted} {verb} not null", effect)]
        case 9 if table.identity is not Identity.DEFERRED:
            full = table.identity is Identity.DEFAULT
            new_identity = Identity.FULL if full else Identity.DEFAULT
            return [
                _alter(
                    table,
                    f"replica identity {new_identity.value}",
                    lambda t: replace(t, identity=new_identity),
                )
            ]
    storage = draw(st.sampled_from(["external", "extended", "main", "plain"]))
    return [_alter(table, f"alter column {column.quoted} set storage {storage}")]


# --- transactions ---

_CHANGES = (_insert, _insert, _insert, _bulk, _update, _update, _update, _update, _rekey, _rekey,
            _delete, _delete, _truncate)  # fmt: skip


@st.composite
def transactions(
    draw: st.DrawFn, tables: Sequence[Table], keys: Keys, *, altering: bool, most: int = 6
) -> Drawn:
    """A transaction over some of the tables."""
    now = {table.name: table for table in tables}
    steps: list[Step] = []
    inside = False
    for _ in range(draw(st.integers(1, most))):
        table = now[draw(st.sampled_from([table.name for table in tables]))]
        if draw(st.integers(0, 7)) == 0:
            before = SAVEPOINT if not inside else draw(st.sampled_from([RELEASE, UNDO]))
            steps.append(Step(before))
            inside = not inside
        if altering and draw(st.integers(0, 5)) == 0:
            drawn = draw(_alteration(table))
        else:
            change = draw(st.sampled_from(_CHANGES))
            drawn = draw(change(table, keys.get(table.name, ())))
        for step in drawn:
            if step.table is not None and step.effect is not None:
                now[step.table] = step.effect(now[step.table])
        steps += drawn
    if inside:
        steps.append(Step(draw(st.sampled_from([RELEASE, UNDO]))))
    ending = draw(st.sampled_from(["commit"] * 10 + ["rollback", "prepare"]))
    return Drawn(tuple(steps), ending)


@st.composite
def upkeep(draw: st.DrawFn, tables: Sequence[Table]) -> str:
    """A statement of an administrator, outside of transactions."""
    table = draw(st.sampled_from(tables))
    verb = draw(st.sampled_from(["vacuum full", "vacuum", "analyze", "reindex table"]))
    return f"{verb} {table.quoted}"


@st.composite
def first_rows(draw: st.DrawFn, table: Table) -> list[Step]:
    """Rows that a table has from the beginning."""
    inserts = draw(st.lists(_insert(table, ()), max_size=4))
    if draw(st.integers(0, 4)) == 0:
        inserts.append(draw(_bulk(table, ())))
    return [step for steps in inserts for step in steps]
