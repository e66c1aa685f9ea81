"""Names of tables as ``cdc rebuild`` takes them."""

import pytest

from cdc.config import parse_config
from cdc.errors import ConfigError
from cdc.names import TableId
from spark_jobs.rebuild import replica_name

YAML = b"""project: p
sources: {shop: {kind: postgres, local: true, database: d, tables: [public.a, '"x.y".b']}}
"""


def test_names_are_looked_up_in_the_configuration(tmp_path):
    config = parse_config(YAML, tmp_path / "cdc.yaml")
    assert replica_name(config, "shop.public.a") == ("shop", TableId("public", "a"))
    assert replica_name(config, 'shop."x.y".b') == ("shop", TableId("x.y", "b"))
    for text in ("public.a", "shop.public.b", "shop", "other.public.a", "shop.public.a.b", ""):
        with pytest.raises(ConfigError) as unknown:
            replica_name(config, text)
        assert unknown.value.code == "unknown_table"
        assert "shop.public.a" in str(unknown.value)


def test_tables_of_a_pattern_are_known(tmp_path):
    config = parse_config(YAML.replace(b"public.a", b"'public.a*'"), tmp_path / "cdc.yaml")
    assert replica_name(config, "shop.public.abc") == ("shop", TableId("public", "abc"))
    # The pattern itself is no table.
    for text in ("shop.public.b", "shop.public.a*"):
        with pytest.raises(ConfigError, match="not a table"):
            replica_name(config, text)
