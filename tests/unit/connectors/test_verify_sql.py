"""SQL of canonical texts: names of any kind, and more columns than a function takes arguments."""

from cdc import codecs
from connectors.postgres.verify_sql import range_number, row_digest, value_text
from tests.support.schemas import column, table_schema


def test_names_are_quoted():
    odd = column(1, 'a "%s" b', codecs.TEXT)
    assert value_text(odd) == '"a ""%s"" b"::text'
    assert '"a ""%s"" b"' in range_number(table_schema(odd, key=(odd.name,)), "UTF8")


def test_no_function_gets_more_than_a_hundred_arguments():
    columns = [column(i, f"c{i}", codecs.INT4) for i in range(1600)]
    text = row_digest(columns, "UTF8")
    assert text.count("concat_ws(") == 19
    assert all(f'"c{i}"' in text for i in range(1600))
    assert row_digest(columns[:90], "UTF8").count("concat_ws(") == 1


def test_other_encodings_are_compared_in_utf8():
    columns = [column(1, "c", codecs.TEXT)]
    assert "convert_to" in row_digest(columns, "LATIN1")
    assert "convert_to" not in row_digest(columns, "UTF8")
