"""Keys that change, in chains and swaps, and a log that the broker has compacted since."""

import orjson
import pytest

from tests.support.capturing import assert_log_is_source
from tests.support.compaction import Log, hasten
from tests.tables.test_table_kinds import SWAP, capturing, swap_keys  # noqa: F401 - a fixture

pytestmark = pytest.mark.timeout(240)

BIG = "repeat('a long value ', 1000)"
#: Keys that are checked at once, and a large value that updates do not send.
CHAIN = (
    "create table chain (id int primary key, n int, big text)",
    "alter table chain alter big set storage external",
    f"insert into chain select i, i, i || {BIG} from generate_series(1, 8) i",
)


def change_keys(source):
    """Leaves the keys as they were, and the rows under others."""
    # Each row takes the key of the one before it, and the first that of the last.
    source.transaction(
        "update chain set id = 100 where id = 1",
        *(f"update chain set id = {i} where id = {i + 1}" for i in range(1, 8)),
        "update chain set id = 8, n = n + 1 where id = 100",
    )
    source.transaction(
        "update chain set id = 50 where id = 2",
        "update chain set id = 51 where id = 50",
        "update chain set id = 2 where id = 51",
        "delete from chain where id = 3",
        f"insert into chain values (3, -1, 'new' || {BIG})",
        "update chain set n = n + 1 where id in (2, 3, 4)",
    )
    swap_keys(source, BIG)
    source.execute("delete from swap where id = 50", "update swap set id = id - 1 where id > 3")


def test_the_log_of_changed_keys_after_compaction(capturing):  # noqa: F811
    source = capturing((*CHAIN, *SWAP), ["chain", "swap"])
    log, tables = Log(source), ("chain", "swap")
    with source.running():
        source.wait_ready()
        topics = {table: source.record(table).topic for table in tables}
        for _ in range(3):
            change_keys(source)
        source.caught_up()
        assert_log_is_source(source, tables)
        old = {table: log.superseded(topic).keys() for table, topic in topics.items()}
        hasten(source.bootstrap, topics.values())
        for table, topic in topics.items():
            log.wait_removed(topic, old[table], lambda: change_keys(source))
        source.caught_up()
        assert_log_is_source(source, tables)
    for table, topic in topics.items():
        # As another reader sees it who keeps the newest value of each key.
        newest = {key: value for _, (key, value) in sorted(log.there(topic).items())}
        rows = [orjson.loads(value)["after"] for value in newest.values() if value]
        found = source.rows(f"select * from {table} order by id")
        assert sorted(tuple(row.values()) for row in rows) == found
