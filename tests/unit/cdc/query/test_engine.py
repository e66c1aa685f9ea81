"""The connection is locked down, and values come out exactly."""

import datetime as dt
from decimal import Decimal

import duckdb
import pytest

from cdc.errors import QueryError
from cdc.query.engine import lock, open_connection, run

plain = dt.datetime.fromisoformat


@pytest.fixture
def connection(tmp_path):
    """Locked, with one file that it may read."""
    allowed = str(tmp_path / "allo'wed.parquet")
    quoted = allowed.replace("'", "''")
    with open_connection() as opened:
        for path in (quoted, tmp_path / "other.parquet"):
            opened.execute(f"copy (select 7 as a) to '{path}' (format parquet)")
        opened.execute(f"create view memory.main.v as from read_parquet(['{quoted}'])")
        lock(opened, [allowed])
        yield opened


def values(connection, sql):
    _, _, rows = run(connection, sql)
    assert len(rows) == 1
    return rows[0]


def test_the_files_of_the_replicas_can_be_read(connection):
    assert values(connection, "select a from memory.main.v") == (7,)


@pytest.mark.parametrize(
    "sql",
    [
        "from read_text('/etc/passwd')",
        "from read_csv('/etc/passwd')",
        "from read_parquet('{tmp}/other.parquet')",
        "from '{tmp}/other.parquet'",
        "from glob('/etc/*')",
        "copy (select 1) to '{tmp}/out.csv'",
        "attach '{tmp}/x.db' as x",
        "set enable_external_access = true",
        "set allowed_paths = ['/etc/passwd']",
        "set lock_configuration = false",
        "set threads = 1",
        "set TimeZone = 'Asia/Tokyo'",
        "reset lock_configuration",
        "install httpfs",
        "load '{tmp}/x.duckdb_extension'",
    ],
)
def test_the_second_wall_holds_without_the_check(connection, tmp_path, sql):
    with pytest.raises(duckdb.Error):
        connection.execute(sql.format(tmp=tmp_path)).fetchall()


def test_no_variable_of_ours_is_a_table(connection):
    rows = duckdb.connect().execute("select 1 as a")  # noqa: F841 - must not be found
    with pytest.raises(QueryError, match="rows"):
        run(connection, "select * from rows")


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("9223372036854775807", 9223372036854775807),
        ("sum(x::bigint) from (values (9223372036854775807), (1)) v(x)", 2**63),
        ("-170141183460469231731687303715884105727::hugeint", -(2**127) + 1),
        ("0.1::float", 0.1),
        ("16777217::float", 16777216.0),
        ("3.4028235e38::float", 3.4028235e38),
        ("-0.0::double", -0.0),
        ("5e-324::double", 5e-324),
        ("1.50::decimal(10,2)", Decimal("1.50")),
        ("99999999999999999999999999999999999.999::decimal(38,3)", Decimal("9" * 35 + ".999")),
        ("'é😀 ''q'''", "é😀 'q'"),
        ("''", ""),
        ("'\\x00\\xFF'::blob", b"\x00\xff"),
        ("true", True),
        ("null", None),
        ("date '0001-01-01'", dt.date(1, 1, 1)),
        ("date '9999-12-31'", dt.date(9999, 12, 31)),
        ("date 'infinity'", "infinity"),
        ("date '10000-01-01'", "10000-01-01"),
        ("timestamp '0001-01-01 00:00:00.000001'", plain("0001-01-01T00:00:00.000001")),
        ("timestamp 'infinity'", "infinity"),
        ("timestamp '2020-02-29 12:00:00'", plain("2020-02-29T12:00:00")),
        ("timestamptz '2020-01-01 02:30:00+02'", dt.datetime(2020, 1, 1, 0, 30, tzinfo=dt.UTC)),
        ("timestamptz '1800-01-01 00:00:00+00'", dt.datetime(1800, 1, 1, tzinfo=dt.UTC)),
        ("timestamptz '-infinity'", "-infinity"),
        ("time '10:11:12.5'", dt.time(10, 11, 12, 500000)),
        ("interval '1 month 2 days'", "1 month 2 days"),
        ("[1, null, 3]", [1, None, 3]),
        ("[1.5::decimal(4,1)]", [Decimal("1.5")]),
        ("[timestamptz '2020-01-01 00:00:00+00']", [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
        ("[timestamp 'infinity', null]", ["infinity", None]),
        ("[[0.1::float], null]", [[0.1], None]),
        ("[]::date[]", []),
        ("null::date[]", None),
        ("[interval '2 days']", "[2 days]"),
        ("uuid '00000000-0000-0000-0000-00000000000a'", "00000000-0000-0000-0000-00000000000a"),
        ("{'a': 1}", "{'a': 1}"),
    ],
)  # fmt: skip
def test_values_are_exact(connection, sql, value):
    (found,) = values(connection, f"select {sql}")
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_not_a_number(connection):
    (found,) = values(connection, "select 'NaN'::double")
    assert found != found


def test_the_time_zone_is_utc(connection, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    (found,) = values(connection, "select timestamp '2020-01-01 00:00:00'::timestamptz")
    assert found == dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def test_names_repeat_and_order_stays(connection):
    names, types, rows = run(
        connection, 'select a, a + 1 as a, a as "x""y" from range(5000) t(a) order by -a -- end'
    )
    assert names == ("a", "a", 'x"y')
    assert types == ("BIGINT", "BIGINT", "BIGINT")
    assert [row[0] for row in rows] == list(range(4999, -1, -1))


def test_duckdbs_errors_are_ours(connection):
    for sql in (
        "select nothing",
        "select 1 / 'x'",
        "select 'x'::int",
        "select 1 + date '2020-01-01' + 'x'::int",
    ):
        with pytest.raises(QueryError) as failed:
            run(connection, sql)
        assert failed.value.code == "sql_failed"
        assert "LINE" not in failed.value.message


def test_what_does_not_fit_into_memory_is_an_error():
    with open_connection() as opened:
        opened.execute("set memory_limit = '20MiB'")
        opened.execute("set temp_directory = ''")
        lock(opened, [])
        with pytest.raises(QueryError) as failed:
            run(opened, "select list(a::varchar) from range(20000000) t(a)")
        assert failed.value.code == "out_of_memory"


def test_large_sorts_spill(tmp_path):
    with open_connection() as opened:
        opened.execute("set memory_limit = '60MiB'")
        lock(opened, [])
        _, _, rows = run(
            opened,
            "select max(a), count(*) from (select a, row_number() over (order by hash(a)) r"
            " from range(3000000) t(a))",
        )
        assert rows == [(2999999, 3000000)]
