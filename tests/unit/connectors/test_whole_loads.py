"""Which loads can go on after a restart, and be paused: not those of a table without a key."""

import pytest

from cdc import codecs
from cdc.control import LoadRecord
from cdc.errors import ConfigError
from cdc.names import TableId
from cdc.states import COPYING, INTENDED, REPLAYING
from connectors.postgres.load_state import Load
from connectors.postgres.whole_loads import NOT_RESUMED, check_pausable, not_resumed
from tests.support.schemas import table_schema

ID = TableId("public", "t")
COUNTED = table_schema(("v", codecs.TEXT), table="t", key=(), identity="f")
KEYED = table_schema(("id", codecs.INT4), table="t")


def load(state, schema, **record):
    made = LoadRecord(ID, 3, "t", "uuid", "chunks", 100, state, **record)
    return Load(made, schema, written=True, clear=True)


def test_a_copy_of_a_table_without_a_key_does_not_go_on():
    error = not_resumed(load(COPYING, COUNTED), "shop.public.t")
    assert error is not None and (error.code, error.table) == (NOT_RESUMED, "shop.public.t")
    for other in (
        load(COPYING, KEYED),
        load(REPLAYING, COUNTED),
        load(COPYING, COUNTED, paused=True),
        load(INTENDED, None),
    ):
        assert not_resumed(other, "t") is None


def test_a_copy_of_a_table_without_a_key_is_not_paused():
    with pytest.raises(ConfigError, match="cannot be paused") as refused:
        check_pausable(load(COPYING, COUNTED), "shop.public.t")
    assert refused.value.table == "shop.public.t"
    waiting = load(COPYING, COUNTED)
    waiting.clear = False
    for other in (load(COPYING, KEYED), load(REPLAYING, COUNTED), waiting, load(INTENDED, None)):
        check_pausable(other, "t")
