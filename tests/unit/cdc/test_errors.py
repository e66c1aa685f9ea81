import pickle

from cdc.errors import HistoryGap, SourceStopped, and_then


def test_text_says_where_and_what_mends_it():
    error = SourceStopped(
        "column_dropped", "a column was dropped", table="shop.public.t", position="0/1", remedy="do"
    )
    assert str(error) == "a column was dropped (table shop.public.t at 0/1)\n  remedy: do"


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(HistoryGap("slot_lost", "gone", table="t", remedy="r")))
    assert (error.code, error.table, error.position, error.remedy) == ("slot_lost", "t", None, "r")
    assert error.to_json()["message"] == "gone"


def test_a_remedy_goes_on_behind_one_semicolon():
    assert and_then("ALTER TABLE t NO INHERIT p;", "then wait") == (
        "ALTER TABLE t NO INHERIT p; then wait"
    )
    assert and_then("free space", "or wait") == "free space; or wait"
