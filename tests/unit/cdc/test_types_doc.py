from tests.support.types_doc import DOC, document


def test_the_table_of_types_is_that_of_the_code():
    assert DOC.read_text() == document(DOC.read_text()), "python -m tests.support.types_doc"
