"""``cdc status`` as text: what is only there when there is something to tell."""

from cdc.status import render_status

REPLICA: dict[str, object] = {
    "position": None,
    "end_lsn": "0/16B3780",
    "version": 3,
    "behind_records": 0,
    "behind_seconds": 0.0,
    "out_of_range": {},
    "error": None,
}


def shown(apart=(), **replica):
    table = {"state": "Ready", "load": 1, "topic": "t", "loading": None, "columns_apart": apart}
    source = {
        "state": "Ready",
        "end_lsn": "0/16B3780",
        "age_seconds": 0.1,
        "slot_lag_bytes": 0,
        "slot": None,
        "tables": {"public.t": table},
        "error": None,
        "source_error": None,
    }
    replicas = {"shop.public.t": {**REPLICA, **replica}}
    return render_status({"project": "p", "sources": {"shop": source}, "replicas": replicas})


def test_values_out_of_range_are_shown_by_column():
    assert "OUT OF RANGE" not in shown()
    text = shown(out_of_range={"ends_on": 12_345, "at": 1})
    block = text[text.index("COLUMN") :].splitlines()
    assert [line.split() for line in block[:3]] == [
        ["COLUMN", "OUT", "OF", "RANGE"],
        ["shop.public.t.at", "1"],
        ["shop.public.t.ends_on", "12,345"],
    ]


def test_columns_that_only_one_side_has_are_shown():
    assert "NOT ALIKE" not in shown()
    text = shown([{"name": "n", "why": "dropped", "since": "P"}])
    assert "shop.public.t.n  dropped at the source, NULL here  P" in text
