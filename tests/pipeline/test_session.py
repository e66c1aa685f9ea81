"""The settings of Spark's session that Delta asks the JVM for, not the session."""

from contextlib import suppress

import pytest

from spark_jobs.session import configured, planned_for, worker_session

pytestmark = pytest.mark.spark


def test_the_jvm_is_in_utc_wherever_it_runs(spark):
    # Not what the machine says, which may well be UTC by another name.
    jvm = spark.sparkContext._jvm
    assert jvm.java.lang.System.getProperty("user.timezone") == "UTC"
    assert jvm.java.util.TimeZone.getDefault().getID() == "UTC"


@pytest.mark.parametrize(
    ("rows", "held", "small"), [(3, 0, True), (501, 0, False), (3, 2**28, False)]
)
def test_little_work_is_interpreted_and_the_settings_come_back(spark, rows, held, small):
    session = worker_session(spark)
    session.conf.set("spark.sql.shuffle.partitions", "7")
    with suppress(KeyError), planned_for(session, rows, held):
        assert session.conf.get("spark.sql.shuffle.partitions") == ("1" if small else "7")
        plan = session.range(3).distinct()._jdf.queryExecution().executedPlan().toString()
        assert ("AdaptiveSparkPlan" not in plan) == small
        raise KeyError
    assert session.conf.get("spark.sql.shuffle.partitions") == "7"
    assert session.conf.get("spark.sql.codegen.factoryMode") == "FALLBACK"
    assert session.conf.get("spark.sql.adaptive.enabled") == "true"


def test_settings_that_were_not_there_are_gone_afterwards(spark):
    session = worker_session(spark)
    name = "spark.databricks.delta.write.txnAppId"
    with configured(session, {name: "one"}):
        with configured(session, {name: "two"}):
            assert session.conf.get(name) == "two"
        assert session.conf.get(name) == "one"
    assert session.conf.get(name, None) is None
