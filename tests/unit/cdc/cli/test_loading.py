"""What the daemon's children say of a load, in words."""

from cdc.cli.loading import load_progress


def child(state, **details):
    return {"name": "capture", "state": state, "details": details or None}


def test_loads_are_told_with_their_share():
    lines = load_progress(
        [
            child("loading", table="shop.public.orders", rows=1200, total=5000, done=False),
            child("loading", table="shop.public.new", rows=7, total=0, done=False),
            child("loading", table="shop.public.more", rows=120, total=100, done=True),
            child("loading", waiting_for_slot_s=3),
            child("streaming"),
        ]
    )
    assert list(lines) == [
        "shop.public.orders: 1,200 of about 5,000 (24 %) rows copied",
        "shop.public.new: 7 rows copied",
        "shop.public.more: 120 of about 100 (99 %) rows copied",
    ]
