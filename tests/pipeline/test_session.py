"""The settings of Spark's session that Delta asks the JVM for, not the session."""

import pytest

pytestmark = pytest.mark.spark


def test_the_jvm_is_in_utc_wherever_it_runs(spark):
    # Not what the machine says, which may well be UTC by another name.
    jvm = spark.sparkContext._jvm
    assert jvm.java.lang.System.getProperty("user.timezone") == "UTC"
    assert jvm.java.util.TimeZone.getDefault().getID() == "UTC"
