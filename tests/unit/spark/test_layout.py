"""Layouts of replicas, literals, options of the Kafka source, windows of history."""

import datetime as dt
import json

import pytest

from cdc import codecs
from cdc.control import TableRecord
from cdc.errors import LakeError
from cdc.names import TableId
from cdc.position import frontier
from cdc.states import READY
from spark_jobs.kafka_options import java_security, range_options
from spark_jobs.layout import Layout, quote
from spark_jobs.log_state import TablePlan
from spark_jobs.merge import literal
from spark_jobs.records import Bounds
from tests.support.schemas import table_schema


def layout(*columns, key=("id",)):
    return Layout(table_schema(*columns, key=key), "shop.public.orders")


def test_a_simple_key_is_compared_as_it_is():
    made = layout(("id", codecs.INT8), ("a", codecs.TEXT))
    assert made.key_column == "id"
    assert made.columns == [("id", "BIGINT"), ("a", "STRING"), ("_cdc_lsn", "BIGINT")]


@pytest.mark.parametrize(
    "columns,key",
    [
        ([("id", codecs.NUMERIC)], ("id",)),
        ([("id", codecs.BPCHAR)], ("id",)),
        ([("id", codecs.TIMESTAMPTZ)], ("id",)),
        ([("id", codecs.INT4), ("b", codecs.TEXT)], ("b", "id")),
    ],
)
def test_other_keys_are_stored(columns, key):
    made = layout(*columns, key=key)
    assert made.key_column == "_cdc_key"
    assert made.names[-2:] == ["_cdc_lsn", "_cdc_key"]
    assert made.arrow_schema(gone=True).names == [*made.names, "_cdc_gone"]
    assert made.spark_schema(gone=True).names == [*made.names, "_cdc_gone"]


def test_names_are_mapped_only_where_parquet_needs_it():
    assert "delta.columnMapping.mode" not in layout(("id", codecs.INT4)).properties("app")
    for name in ("a b", "a,b", "a=b", "a\tb", "a{"):
        properties = layout(("id", codecs.INT4), (name, codecs.TEXT)).properties("app")
        assert properties["delta.columnMapping.mode"] == "name"


@pytest.mark.parametrize("name", ["_cdc_lsn", "_CDC_x"])
def test_columns_that_delta_cannot_hold_are_refused(name):
    with pytest.raises(LakeError) as refused:
        layout(("id", codecs.INT4), (name, codecs.TEXT)).check()
    assert refused.value.code == "unsupported_columns"
    assert refused.value.table == "shop.public.orders"


def test_literals():
    assert literal(-(2**63), layout(("id", codecs.INT8))) == "-9223372036854775808L"
    assert literal(-5, layout(("id", codecs.INT2))) == "-5S"
    assert literal(7, layout(("id", codecs.INT4))) == "7"
    assert literal(dt.date(1, 2, 3), layout(("id", codecs.DATE))) == "DATE'0001-02-03'"
    assert literal("it's \\ ${x}", layout(("id", codecs.TEXT))) == "'it\\'s \\\\ ${x}'"
    assert quote("a`b") == "`a``b`"


def test_range_options_leave_empty_partitions_out():
    options = range_options("host:1", {}, "t", {0: (5, 9), 1: (3, 3), 2: (0, 1)}, 4)
    assert json.loads(options["assign"]) == {"t": [0, 2]}
    assert json.loads(options["startingOffsets"]) == {"t": {"0": 5, "2": 0}}
    assert json.loads(options["endingOffsets"]) == {"t": {"0": 9, "2": 1}}
    assert options["failOnDataLoss"] == "true"
    assert options["kafka.isolation.level"] == "read_committed"


def test_security_in_the_spelling_of_java(tmp_path):
    (tmp_path / "cert").write_text("CERT")
    (tmp_path / "key").write_text("KEY")
    options = java_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "reader",
            "sasl.password": 'a"b\\c',
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": str(tmp_path / "cert"),
            "ssl.key.location": str(tmp_path / "key"),
        }
    )
    assert options["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="reader" password="a\\"b\\\\c";'
    )
    assert options["kafka.ssl.truststore.location"] == "/ca.pem"
    assert options["kafka.ssl.keystore.key"] == "KEY"
    assert options["kafka.security.protocol"] == "SASL_SSL"


def plan(start, whole_since, lag):
    record = TableRecord(TableId("public", "orders"), READY, 1, "t", "id", 1)
    made = layout(("id", codecs.INT4))
    bounds = Bounds(start, frontier(0, 99))
    return TablePlan("shop", made, record, {}, bounds, {}, {}, 0, None, whole_since, lag)


def test_history_is_whole_within_the_compaction_lag_only():
    day = 86_400.0
    plan(frontier(0, 5), 100 * day, None).check_window(1e12)
    plan(frontier(0, 5), 100 * day, 7 * day).check_window(106.9 * day)
    for start, code in ((frontier(0, 5), "history_compacted"), (None, "read_too_slow")):
        with pytest.raises(LakeError) as refused:
            plan(start, 100 * day, 7 * day).check_window(106.99 * day)
        assert refused.value.code == code
    with pytest.raises(LakeError):
        plan(frontier(0, 5), None, 7 * day).check_window(0.0)


def test_bounds_know_what_a_truncate_leaves():
    p, f = frontier(0, 10), frontier(0, 20)
    assert Bounds(p, f).has_base and not Bounds(p, f).truncated
    below, inside = Bounds(p, f, frontier(0, 9)), Bounds(p, f, frontier(0, 10))
    assert below.has_base and not below.truncated
    assert inside.truncated and not inside.has_base
    assert not Bounds(None, f).has_base
