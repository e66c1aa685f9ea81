"""Every message that protocol version 1 can carry."""

from hypothesis import strategies as st

from cdc.unsent import UNSENT
from connectors.postgres.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    Type,
    Update,
)

u32 = st.integers(0, 2**32 - 1)
lsns = st.integers(1, 2**64 - 1)
# Any int64 of Postgres' clock, which counts from 2000.
times = st.integers(-(2**63), 2**63 - 1).map(lambda us: us + 946_684_800_000_000)
names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=0, max_size=20
)
values = st.one_of(st.none(), st.just(UNSENT), st.binary(max_size=40))


def rows(size):
    return st.tuples(*[values] * size)


@st.composite
def updates(draw):
    size = draw(st.integers(0, 6))
    kind = draw(st.sampled_from(["", "K", "O"]))
    old = draw(rows(size)) if kind else None
    return Update(draw(u32), kind, old, draw(rows(size)))


any_row = st.integers(0, 8).flatmap(rows)
columns = st.builds(
    RelationColumn, names, u32, st.integers(-(2**31), 2**31 - 1), in_key=st.booleans()
)
changes = st.one_of(
    st.builds(Insert, u32, any_row),
    updates(),
    st.builds(Delete, u32, st.sampled_from(["K", "O"]), any_row),
    st.builds(
        Truncate,
        st.lists(u32, max_size=5).map(tuple),
        cascade=st.booleans(),
        restart_identity=st.booleans(),
    ),
    st.builds(
        Relation,
        u32,
        names,
        names,
        st.sampled_from("dnfi"),
        st.lists(columns, max_size=5).map(tuple),
    ),
    st.builds(Type, u32, names, names),
    st.builds(Origin, lsns, names),
    st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=30)),
)
messages = st.one_of(
    st.builds(Begin, lsns, times, u32), st.builds(Commit, lsns, lsns, times), changes
)
