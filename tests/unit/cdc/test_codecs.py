import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc import codecs
from cdc.codecs import CODECS, BadText, TypePolicies, arrow_type, delta_type, from_json, to_text
from cdc.errors import LakeError
from cdc.schema import ARRAY, ARRAY_ERROR, ARRAY_NULL, CLAMP, ERROR, NULL, STRING, WireType
from tests.support.schemas import INT4S, TEXTS, column, numeric_typmod, table_schema


def json_of(oid, text):
    return orjson.loads(CODECS[oid].to_json(text))


@pytest.mark.parametrize(
    ("oid", "text", "fragment"),
    [
        (codecs.BOOL, b"t", b"true"),
        (codecs.BOOL, b"f", b"false"),
        (codecs.INT8, b"-9223372036854775808", b"-9223372036854775808"),
        (codecs.FLOAT8, b"1e+20", b"1e+20"),
        (codecs.FLOAT8, b"-0", b"-0.0"),
        (codecs.FLOAT8, b"NaN", b'"NaN"'),
        (codecs.FLOAT4, b"-Infinity", b'"-Infinity"'),
        (codecs.NUMERIC, b"1.500", b'"1.500"'),
        (codecs.NUMERIC, b"NaN", b'"NaN"'),
        (codecs.TEXT, b'a"\\\n', b'"a\\"\\\\\\n"'),
        (codecs.TEXT, "é😀".encode(), '"é😀"'.encode()),
        (codecs.BPCHAR, b"ab  ", b'"ab  "'),
        (codecs.BYTEA, b"\\x", b'""'),
        (codecs.BYTEA, b"\\x00ff", b'"AP8="'),
        (codecs.DATE, b"2024-02-29", b'"2024-02-29"'),
        (codecs.DATE, b"0044-03-15 BC", b'"0044-03-15 BC"'),
        (codecs.TIMESTAMP, b"2024-02-29 01:02:03", b'"2024-02-29T01:02:03.000000"'),
        (codecs.TIMESTAMP, b"2024-02-29 01:02:03.5", b'"2024-02-29T01:02:03.500000"'),
        (codecs.TIMESTAMP, b"infinity", b'"infinity"'),
        (codecs.TIMESTAMP, b"10000-01-01 00:00:00", b'"10000-01-01 00:00:00"'),
        (codecs.TIMESTAMP, b"0044-03-15 01:02:03 BC", b'"0044-03-15 01:02:03 BC"'),
        (codecs.TIMESTAMPTZ, b"2024-02-29 01:02:03.123456+00", b'"2024-02-29T01:02:03.123456Z"'),
        (codecs.TIMESTAMPTZ, b"2024-02-29 01:02:03+00", b'"2024-02-29T01:02:03.000000Z"'),
        (codecs.TIMESTAMPTZ, b"-infinity", b'"-infinity"'),
        (codecs.TIMESTAMPTZ, b"0044-03-15 01:02:03+00 BC", b'"0044-03-15 01:02:03+00 BC"'),
        (codecs.JSON, b'{"a": 1,  "b":"\\u0041"}', b'"{\\"a\\": 1,  \\"b\\":\\"\\\\u0041\\"}"'),
    ],
)
def test_json_forms_are_as_pinned(oid, text, fragment):
    assert CODECS[oid].to_json(text) == fragment


@given(st.integers(1, 999_999_999), st.integers(-45, 30), st.sampled_from(["", "-"]))
@example(96835864, 13, "")  # lies in the middle between two doubles
def test_digits_of_a_float4_come_back(digits, exponent, sign):
    printed = to_text.real(float(f"{sign}{digits}e{exponent}"))
    assert Decimal(printed) == Decimal(f"{sign}{digits}e{exponent}")


@given(st.text().filter(lambda s: "\0" not in s))
def test_text_is_lossless(text):
    assert json_of(codecs.TEXT, text.encode()) == text


@given(st.binary())
def test_bytea_is_lossless(raw):
    value = json_of(codecs.BYTEA, b"\\x" + raw.hex().encode())
    assert from_json(column(1, "c", codecs.BYTEA))(value) == raw


@given(st.floats())
def test_floats_are_lossless(number):
    text = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, repr(number))
    text = "NaN" if math.isnan(number) else text.removesuffix(".0")
    back = from_json(column(1, "c", codecs.FLOAT8))(json_of(codecs.FLOAT8, text.encode()))
    assert (math.isnan(back) and math.isnan(number)) or (
        back == number and math.copysign(1, back) == math.copysign(1, number)
    )


@given(st.datetimes(dt.datetime(1, 1, 1)))  # noqa: DTZ001
def test_timestamps_are_lossless(moment):
    convert = from_json(column(1, "c", codecs.TIMESTAMP))
    text = moment.isoformat(sep=" ").encode()
    assert convert(json_of(codecs.TIMESTAMP, text)) == moment
    convert = from_json(column(1, "c", codecs.TIMESTAMPTZ))
    assert convert(json_of(codecs.TIMESTAMPTZ, text + b"+00")) == moment.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("type", "ddl"),
    [
        ("numeric", "STRING"),
        ("numeric(10,2)", "DECIMAL(10,2)"),
        ("numeric(38,38)", "DECIMAL(38,38)"),
        ("numeric(39,2)", "STRING"),
        ("numeric(3,-2)", "STRING"),
        ("numeric(2,4)", "STRING"),
    ],
)
def test_numeric_is_decimal_only_when_exact(type, ddl):
    numeric = column(1, "c", codecs.NUMERIC, type=type)
    assert delta_type(numeric) == ddl
    value = from_json(numeric)("1.5")
    assert value == (Decimal("1.5") if ddl != "STRING" else "1.5")
    assert str(arrow_type(numeric)).startswith("decimal128" if ddl != "STRING" else "string")


FIRST, LAST = dt.date(1, 1, 1), dt.date(9999, 12, 31)
BEGINNING = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
END = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
#: Type, its text, the text of a value that Delta cannot hold, and what is nearest to it.
OUT_OF_RANGE = [
    (codecs.NUMERIC, "numeric(10,2)", "NaN", None),
    (codecs.DATE, "date", "infinity", LAST),
    (codecs.DATE, "date", "-infinity", FIRST),
    (codecs.DATE, "date", "0044-03-15 BC", FIRST),
    (codecs.DATE, "date", "10000-01-01", LAST),
    (codecs.DATE, "date", "5874897-12-31", LAST),
    (codecs.TIMESTAMP, "timestamp", "-infinity", BEGINNING.replace(tzinfo=None)),
    (codecs.TIMESTAMP, "timestamp", "0044-03-15 12:00:00 BC", BEGINNING.replace(tzinfo=None)),
    (codecs.TIMESTAMP, "timestamp", "294276-12-31 23:59:59.999999", END.replace(tzinfo=None)),
    (codecs.TIMESTAMPTZ, "timestamptz", "infinity", END),
    (codecs.TIMESTAMPTZ, "timestamptz", "10000-01-01 00:00:00+00", END),
    (codecs.TIMESTAMPTZ, "timestamptz", "4713-01-02 00:00:00.5+00 BC", BEGINNING),
]


@pytest.mark.parametrize(("oid", "type", "text", "nearest"), OUT_OF_RANGE)
def test_what_delta_cannot_hold_is_replaced_by_the_columns_policy(oid, type, text, nearest):
    value = json_of(oid, text.encode())
    clamped = column(1, "c", oid, type=type)
    assert codecs.bends(clamped) and codecs.is_out_of_range(clamped, value)
    assert from_json(clamped)(value) == nearest
    assert from_json(replace(clamped, policy=NULL))(value) is None
    as_text = replace(clamped, policy=STRING)
    assert (delta_type(as_text), codecs.bends(as_text)) == ("STRING", False)
    assert from_json(as_text)(value) == text
    with pytest.raises(LakeError, match="column when_it_was") as caught:
        from_json(replace(clamped, name="when_it_was", policy=ERROR))(value)
    assert caught.value.code == "value_out_of_range"
    assert text not in str(caught.value)


@pytest.mark.parametrize("policy", [CLAMP, NULL, ERROR])
@pytest.mark.parametrize(
    ("oid", "type", "value"),
    [
        (codecs.NUMERIC, "numeric(10,2)", "1x"),
        (codecs.DATE, "date", "2024-02-30"),
        (codecs.DATE, "date", "infinite"),
        (codecs.TIMESTAMP, "timestamp", "2024-02-30T00:00:00.000000"),
        (codecs.TIMESTAMPTZ, "timestamptz", "10000-01-01 25"),
        (codecs.TIMESTAMPTZ, "timestamptz", 7),
    ],
)
def test_what_is_no_value_at_all_is_an_error_whatever_the_policy(oid, type, value, policy):
    with pytest.raises(LakeError):
        from_json(column(1, "c", oid, type=type, policy=policy))(value)


@given(st.dates())
def test_what_delta_holds_is_never_out_of_range(day):
    date = column(1, "c", codecs.DATE)
    assert not codecs.is_out_of_range(date, day.isoformat())
    for oid, suffix in ((codecs.TIMESTAMP, ""), (codecs.TIMESTAMPTZ, "Z")):
        moment = f"{day.isoformat()}T00:00:00.000000{suffix}"
        assert not codecs.is_out_of_range(column(1, "c", oid), moment)


def test_policies_of_columns_go_before_those_of_types():
    schema = table_schema(
        ("day", codecs.DATE), ("at", codecs.TIMESTAMPTZ), ("b", codecs.TIMESTAMPTZ),
        ("n", codecs.NUMERIC), ("f", codecs.FLOAT8), key=("day",),
    )  # fmt: skip
    types = {"timestamp with time zone": NULL, "date": CLAMP}
    policies = TypePolicies(types, {"at": STRING, "f": STRING, "gone": NULL})
    found = policies.put_into(schema)
    # Two dates of a key would become one.
    assert {c.name: c.policy for c in found.columns} == {
        "day": ERROR, "at": STRING, "b": NULL, "n": CLAMP, "f": STRING,
    }  # fmt: skip
    assert policies.unknown_columns(schema) == ("gone",)
    assert delta_type(found.column("f")) == "STRING"
    assert from_json(found.column("f"))(1e23) == "9.999999999999999e+22"
    assert found.to_record() == schema.to_record()
    assert TypePolicies({"date": STRING}).put_into(schema).column("day").policy == STRING


def array(oid, policy=ARRAY, type="any[]", typmod=-1):
    made = column(1, "c", 16500, type=type, policy=policy)
    return replace(made, wire=WireType(oid, typmod, array=True))


@pytest.mark.parametrize(
    ("oid", "ddl", "text", "value"),
    [
        (codecs.INT4, "ARRAY<INT>", "{1,NULL,-3}", [1, None, -3]),
        (codecs.TEXT, "ARRAY<STRING>", '{"",NULL,"NULL","[[1"}', ["", None, "NULL", "[[1"]),
        (codecs.NUMERIC, "ARRAY<STRING>", "{NaN,1.50}", ["NaN", "1.50"]),
        (codecs.BYTEA, "ARRAY<BINARY>", '{"\\\\x00ff"}', [b"\x00\xff"]),
        (codecs.DATE, "ARRAY<DATE>", "{2024-02-29}", [dt.date(2024, 2, 29)]),
        (codecs.FLOAT8, "ARRAY<DOUBLE>", "{0.1,-Infinity}", [0.1, -math.inf]),
        (16400, "ARRAY<STRING>", '{sad,"do re"}', ["sad", "do re"]),
        (codecs.BOOL, "ARRAY<BOOLEAN>", "{}", []),
    ],
)
def test_an_array_is_an_array_when_cdc_yaml_says_so(oid, ddl, text, value):
    for policy in (ARRAY, ARRAY_NULL, ARRAY_ERROR):
        wanted = array(oid, policy)
        form = orjson.loads(codecs.codec_of(wanted).to_json(text.encode()))
        assert delta_type(wanted) == ddl
        assert from_json(wanted)(form) == value
        assert not codecs.is_out_of_range(wanted, form)
        assert codecs.bends(wanted) == (policy != ARRAY_ERROR)


@pytest.mark.parametrize(
    ("oid", "text", "clamped", "nulled"),
    [
        (codecs.INT4, "{{1,2},{3,4}}", None, None),
        (codecs.INT4, "[0:1]={1,2}", None, None),
        (codecs.TEXT, "{{NULL}}", None, None),
        (codecs.DATE, "{2024-02-29,infinity,NULL}", [dt.date(2024, 2, 29), LAST, None],
         [dt.date(2024, 2, 29), None, None]),
        (codecs.NUMERIC, "{1.50,NaN}", [Decimal("1.50"), None], [Decimal("1.50"), None]),
    ],
)  # fmt: skip
def test_what_an_array_cannot_hold_is_replaced_by_the_policy(oid, text, clamped, nulled):
    typmod = numeric_typmod(10, 2) if oid == codecs.NUMERIC else -1
    for policy, value in ((ARRAY, clamped), (ARRAY_NULL, nulled)):
        wanted = array(oid, policy, typmod=typmod)
        form = orjson.loads(codecs.codec_of(wanted).to_json(text.encode()))
        assert codecs.is_out_of_range(wanted, form)
        assert from_json(wanted)(form) == value
    strict = array(oid, ARRAY_ERROR, typmod=typmod)
    with pytest.raises(LakeError) as caught:
        from_json(strict)(form)
    assert caught.value.code == "value_out_of_range"
    assert text not in str(caught.value)


def test_arrays_by_type_and_by_column():
    schema = table_schema(
        ("id", codecs.INT4), ("a", INT4S), ("b", TEXTS), ("c", INT4S), ("d", codecs.TEXT)
    )
    policies = TypePolicies({"integer[]": ARRAY_NULL}, {"b": ARRAY, "c": STRING, "d": ARRAY})
    found = policies.put_into(schema)
    assert {c.name: delta_type(c) for c in found.columns} == {
        "id": "INT", "a": "ARRAY<INT>", "b": "ARRAY<STRING>", "c": "STRING", "d": "STRING",
    }  # fmt: skip
    assert policies.not_arrays(schema) == ("d",)
    assert from_json(found.column("c"))([1, None]) == "{1,NULL}"


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (codecs.TEXT, b"\xff\xfe"),
        (codecs.BYTEA, b"\\000"),
        (codecs.BYTEA, b"\\x0"),
        (codecs.BYTEA, b"\\xzz"),
        (codecs.TIMESTAMPTZ, b"2024-02-29 01:02:03-11"),
    ],
)
def test_text_that_is_not_of_the_type_is_refused(oid, text):
    with pytest.raises(BadText):
        CODECS[oid].to_json(text)


def test_the_arrow_type_of_every_codec():
    for oid in codecs.CODECS:
        assert arrow_type(column(1, "c", oid, type="any")) is not None
