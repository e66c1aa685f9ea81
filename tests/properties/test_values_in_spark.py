"""Spark makes of a JSON value what ``cdc.codecs`` makes of it."""

import random

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from cdc import codecs
from cdc.errors import LakeError
from cdc.schema import (
    ARRAY,
    ARRAY_ERROR,
    ARRAY_NULL,
    CLAMP,
    ERROR,
    NULL,
    STRING,
    Column,
    WireType,
)
from spark_jobs.failures import spark_failures
from spark_jobs.layout import Layout
from spark_jobs.session import worker_session
from spark_jobs.texts import JSON_OPTIONS, json_text
from spark_jobs.values import text_struct, typed
from tests.support.schemas import numeric_typmod, table_schema

pytestmark = pytest.mark.spark

#: An OID of no type in the table.
OTHER = 16400
ELEMENTS = {
    codecs.TEXT: ["", "NULL", "null", "Null", " ", "\t\n\v\f\r", '"', "\\", "{", "}", ",", "[1:2]=",
                  "a", "é😀\u2028", ";", "x\\\"y", "\x01", "nulls"],
    codecs.INT8: ["-9223372036854775808", "9007199254740993", "0"],
    codecs.BOOL: ["t", "f"],
    codecs.FLOAT4: ["-0", "0", "NaN", "-Infinity", "1e-45", "3.4028235e+38", "0.1",
                    "9.6835864e+20"],
    codecs.FLOAT8: ["-0", "Infinity", "5e-324", "9.999999999999999e+22", "1.7976931348623157e+308",
                    "0.30000000000000004", "123456789012345", "1e+15", "0.0001", "1e-05"],
    codecs.NUMERIC: ["1.10", "NaN", "-Infinity", "9" * 2000 + ".5", "0.00"],
    codecs.BYTEA: ["\\x", "\\x00ff5c22"],
    codecs.DATE: ["2024-02-29", "infinity", "0044-03-15 BC", "10000-01-01"],
    codecs.TIMESTAMP: ["2024-02-29 01:02:03", "2024-02-29 01:02:03.5", "0001-01-01 00:00:00.000001",
                       "infinity", "0044-03-15 12:00:00 BC", "294276-12-31 23:59:59.999999"],
    codecs.TIMESTAMPTZ: ["2024-02-29 01:02:03.12+00", "2024-02-29 01:02:03+00", "-infinity",
                         "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"],
    codecs.JSON: ['{"a":  [1, "x,y"]}', " null", '"\\ud83d"'],
    OTHER: ['(1,"x""y")', "do re", "[1,5)"],
}  # fmt: skip

DECIMALS = ["NaN", "-9999999999999999999999999999.9999999999", "0.0000000000"]


def printed(value, delimiter=","):
    """``array_out``, from nested lists of texts."""
    if isinstance(value, list):
        return "{" + delimiter.join(printed(v, delimiter) for v in value) + "}"
    if value is None:
        return "NULL"
    if value and value.upper() != "NULL" and not set(value) & set('{}"\\ \t\n\v\f\r' + delimiter):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def arrays(elements, rng, delimiter):
    """Texts of arrays of one to six dimensions."""
    elements = [*elements, None]
    made = ["{}", printed([None], delimiter), printed(elements, delimiter)]
    made += [
        f"[-1:0]={printed(elements[:2], delimiter)}",
        printed([[e] for e in elements], delimiter),
    ]
    for dimensions in range(1, 7):
        value = [rng.choice(elements) for _ in range(2)]
        for _ in range(dimensions - 1):
            value = [value, value]
        made.append(printed(value, delimiter))
    return made


def in_spark(spark, columns, texts):
    """The values of each column, by Spark."""
    size = max(map(len, texts))
    rows = []
    for r in range(size):
        row = {
            c.name: orjson.Fragment(codecs.codec_of(c).to_json(values[r].encode()))
            for c, values in zip(columns, texts, strict=True)
            if r < len(values)
        }
        rows.append({"r": r, "j": orjson.dumps(row).decode()})
    session = worker_session(spark)
    frame = session.createDataFrame(pa.Table.from_pylist(rows))
    struct = text_struct([c.name for c in columns])
    opened = frame.select("r", "j", f.from_json("j", struct, JSON_OPTIONS).alias("a"))
    found = opened.select(
        "r",
        *(
            typed(c, i, json_text(c, f.col("j"), f.col("a")[c.name])).alias(c.name)
            for i, c in enumerate(columns)
        ),
    ).toArrow()
    by_row = {row["r"]: row for row in found.to_pylist()}
    return [[by_row[r][c.name] for r in range(len(v))] for c, v in zip(columns, texts, strict=True)]


def test_texts_of_arrays_are_those_of_the_server(spark):
    rng = random.Random(5)
    columns, texts = [], []
    for number, oid in enumerate(ELEMENTS):
        delimiter = ";" if oid == OTHER else ","
        wire = WireType(oid, -1, array=True, delimiter=delimiter)
        columns.append(Column(number, f"c{number}", 1, -1, "any", False, wire=wire))
        texts.append(arrays(ELEMENTS[oid], rng, delimiter))
    found = in_spark(spark, columns, texts)
    for column, values, expected in zip(columns, found, texts, strict=True):
        assert values == expected
        codec = codecs.codec_of(column)
        assert [
            codec.to_text(orjson.loads(codec.to_json(t.encode()))) for t in expected
        ] == expected


@pytest.mark.parametrize("policy", [CLAMP, NULL, STRING])
def test_values_of_every_type_are_those_of_the_codecs(spark, policy):
    columns, texts = [], []
    for number, (oid, elements) in enumerate([*ELEMENTS.items(), (codecs.NUMERIC, DECIMALS)]):
        typmod = numeric_typmod(38, 10) if elements is DECIMALS else -1
        columns.append(Column(number, f"c{number}", oid, typmod, "any", False, policy=policy))
        texts.append(elements)
    found = in_spark(spark, columns, texts)
    for column, values, given in zip(columns, found, texts, strict=True):
        convert, encode = codecs.from_json(column), codecs.codec_of(column).to_json
        expected = [convert(orjson.loads(encode(text.encode()))) for text in given]
        expected = pa.array(expected, codecs.arrow_type(column)).to_pylist()
        # NaN is not equal to itself, and -0.0 is to 0.0: text tells.
        assert repr(values) == repr(expected)
        if policy == STRING:
            assert values == given


@pytest.mark.parametrize("policy", [ARRAY, ARRAY_NULL])
def test_arrays_are_those_of_the_codecs(spark, policy):
    rng = random.Random(7)
    columns, texts = [], []
    for number, (oid, elements) in enumerate([*ELEMENTS.items(), (codecs.NUMERIC, DECIMALS)]):
        typmod = numeric_typmod(38, 10) if elements is DECIMALS else -1
        wire = WireType(oid, typmod, array=True, delimiter=",")
        columns.append(Column(number, f"c{number}", 1, -1, "any", False, wire=wire, policy=policy))
        # What an array may hold too.
        texts.append([*arrays(elements, rng, ","), *(printed([e]) for e in elements)])
    found = in_spark(spark, columns, texts)
    for column, values, given in zip(columns, found, texts, strict=True):
        convert, encode = codecs.from_json(column), codecs.codec_of(column).to_json
        expected = [convert(orjson.loads(encode(text.encode()))) for text in given]
        assert [] in expected and None in expected
        assert repr(values) == repr(pa.array(expected, codecs.arrow_type(column)).to_pylist())


@pytest.mark.parametrize(
    ("oid", "text", "policy"),
    [
        (codecs.DATE, "infinity", ERROR),
        (codecs.TIMESTAMP, "0044-03-15 00:00:00 BC", ERROR),
        (codecs.NUMERIC, "NaN", ERROR),
        (codecs.DATE, "{NULL,infinity}", ARRAY_ERROR),
        (codecs.INT8, "{{77}}", ARRAY_ERROR),
        (codecs.INT8, "[2:2]={77}", ARRAY_ERROR),
    ],
)
def test_a_value_out_of_range_is_an_error_when_cdc_yaml_says_so(spark, oid, text, policy):
    typmod = numeric_typmod(5, 2) if oid == codecs.NUMERIC else -1
    wire = WireType(oid, typmod, array=policy == ARRAY_ERROR)
    refused = Column(1, "c", oid, typmod, "any", False, wire=wire, policy=policy)
    layout = Layout(table_schema(refused, key=("c",)), "shop.public.t")
    with pytest.raises(LakeError) as caught, spark_failures(layout, "reading"):
        in_spark(spark, [refused], [[text]])
    assert caught.value.code == "value_out_of_range"
    assert "column c" in caught.value.message and text not in str(caught.value)


@pytest.mark.parametrize("element", ["\\\\", '"', "x", "é\n", ","])
def test_long_elements_of_arrays_are_read(spark, element):
    text = printed([element * 300_000, "b", element * 300_000])
    wire = WireType(codecs.TEXT, -1, array=True)
    column = Column(1, "c", 1009, -1, "text[]", False, wire=wire)
    assert in_spark(spark, [column], [[text]]) == [[text]]


def test_a_text_of_many_megabytes_is_read(spark):
    text = "x" * 30_000_000
    assert in_spark(spark, [Column(1, "c", codecs.TEXT, -1, "text", False)], [[text]]) == [[text]]
