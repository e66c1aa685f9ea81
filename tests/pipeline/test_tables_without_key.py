"""Tables without a key through Delta: replica, query, verify and rebuild are what Postgres has."""

from collections import Counter
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.errors import LogError
from cdc.lake import KEY_COLUMN
from cdc.names import TableId, lake_folder
from cdc.query.run import run_query
from spark_jobs.apply import Applier, ApplySettings, apply_once
from spark_jobs.log_state import LogAddress
from spark_jobs.rebuild import rebuild_table
from tests.support.capturing import SOURCE, Capturing
from tests.support.gated import Gate
from tests.support.verifying import Verifying

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DUP = TableId("public", "dup")
CREATE = (
    "create table dup (a int, b text, f float8, day date)",
    "alter table dup replica identity full",
    "insert into dup select i % 3, 'x', 0, '2024-02-29' from generate_series(1, 30) i",
    "insert into dup values (null, null, null, null), (null, null, null, null)",
    "insert into dup values (9, 'y', '-0', null)",
    # Two rows of the source that are one and the same in Delta, whose dates end at 9999.
    "insert into dup values (5, '', 'NaN', 'infinity'), (5, '', 'NaN', '9999-12-31')",
)
ONE = "ctid = (select max(ctid) from dup where a = {})"
#: Ways to fold and to write: in the driver and by literals, in Spark and by MERGE.
PATHS = (
    pytest.param({}, id="driver"),
    pytest.param({"small_range": 0, "few_keys": 0}, id="spark", marks=pytest.mark.full),
)


class Project(Verifying):
    """The table's source, captured, and its lake."""

    def __init__(self, folder, capturing, spark):
        super().__init__(folder, capturing)
        self._spark = spark
        settings = capturing.settings
        self._address = LogAddress(capturing.bootstrap, {}, settings.topic_prefix)

    def settings(self, **options):
        return ApplySettings(self.config.lake.path, **options)

    def apply(self, **options):
        self.capturing.caught_up()
        (result,) = apply_once(self._spark, self._address, self.settings(**options), [SOURCE])
        return result.action

    def rebuild(self, **options):
        applier = Applier(self._spark, self._address, self.settings(**options))
        try:
            return rebuild_table(applier, SOURCE, DUP)["rows"]
        finally:
            applier.close()

    def replica(self):
        table = DeltaTable(lake_folder(str(self.lake), SOURCE, *DUP))
        found = QueryBuilder().register("t", table).execute("select * from t")
        return pa.table(found.read_all()).to_pylist()

    def check_query(self):
        """What a query says, as other engines would read the replica, and verify."""
        day = "case when day > '9999-12-31' then '9999-12-31' else day end"
        texts = f"a::text, b, f::text, ({day})::text"
        wanted = Counter(self.capturing.rows(f"select {texts} from dup"))
        self.capturing.caught_up()
        found = run_query(self.config, "select a::varchar, b, f, day::varchar from shop.public.dup")
        assert Counter(tuple(map(printed, row)) for row in found.rows) == wanted
        return wanted

    def check(self):
        wanted = self.check_query()
        rows = self.replica()
        keys = [row[KEY_COLUMN] for row in rows]
        assert len(set(keys)) == len(keys)
        held = Counter(
            (
                None if row["a"] is None else str(row["a"]),
                row["b"],
                printed(row["f"]),
                None if row["day"] is None else str(row["day"]),
            )
            for row in rows
        )
        assert held == wanted
        for only in (False, True):
            found = self.verify("dup", replica=only)["dup"]
            assert (found.outcome, found.error) == ("equal", None)
            assert found.source_rows == len(rows)


def printed(value):
    """As Postgres prints a float; other values as they are."""
    if not isinstance(value, float):
        return value
    return "NaN" if value != value else repr(value).removesuffix(".0")


@pytest.fixture
def project(stack, database, topic_prefix, tmp_path, spark):
    gate = Gate()
    gate.open_to(1)
    source = Capturing(stack.bootstrap, database, topic_prefix, ["dup"], make_copier=gate)
    source.execute(*CREATE)
    with source.running():
        source.wait_ready()
        yield Project(tmp_path, source, spark)


CHANGES = (
    (
        f"delete from dup where {ONE.format(1)}",
        f"update dup set b = 'z' where {ONE.format(1)}",
        "insert into dup values (1, 'x', 0, '2024-02-29'), (7, 'n', 1, null), (7, 'n', 1, null)",
        "delete from dup where a is null and ctid = (select min(ctid) from dup where a is null)",
        "update dup set f = 0 where a = 9",
        "delete from dup where day = 'infinity'",
    ),
    (
        "update dup set b = b",
        f"delete from dup where {ONE.format(7)}",
        "insert into dup select a, b, f, day from dup where a < 2",
        "delete from dup where a = 2",
    ),
)


@pytest.mark.parametrize("path", PATHS)
def test_rows_are_as_often_there_as_at_the_source(project, path):
    source = project.capturing
    project.check_query()
    assert project.apply(**path) == "append"
    project.check()
    for changes in CHANGES:
        source.execute(*changes)
        project.check_query()
        assert project.apply(**path) == ("merge" if path else "overwrite")
        project.check()
        # A second time there is nothing to do.
        assert project.apply(**path) == "current"
    rows = source.rows("select count(*) from dup")[0][0]
    assert project.rebuild(**path) == rows
    project.check()
    source.execute("delete from dup where a = 1", "truncate dup", CREATE[3])
    project.check_query()
    project.apply(**path)
    project.check()
    assert project.rebuild(**path) == 2


@pytest.mark.full
def test_a_wrong_replica_is_found_and_never_made_up_for(project):
    """Negative controls, and a row that goes and is not there."""
    source = project.capturing
    project.apply()
    project.delete("dup", "a = 9")
    found = project.different("dup")
    assert [difference.kind for difference in found.differences] == ["missing"]
    assert set(found.differences[0].key) == {"md5 of the row"}
    (with_values,) = project.different("dup", values=True).differences
    assert with_values.source == {"a": 9, "b": "y", "f": -0.0, "day": None}
    source.execute("update dup set b = 'gone' where a = 9")
    source.caught_up()
    for ask in (partial(project.apply), partial(project.apply, small_range=0)):
        with pytest.raises(LogError) as refused:
            ask()
        assert (refused.value.code, refused.value.table) == ("row_missing", "shop.public.dup")
    with pytest.raises(LogError) as refused:
        run_query(project.config, "select * from shop.public.dup")
    assert (refused.value.code, refused.value.table) == ("row_missing", "shop.public.dup")
    project.rebuild()
    project.check()
