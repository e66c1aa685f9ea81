"""cdc.yaml: what is accepted, and what the errors say and hide."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config import Config, load_config, parse_config
from cdc.config.jsonschema import config_schema
from cdc.errors import ConfigError
from cdc.names import TableId

ROOT = Path(__file__).resolve().parents[4]
AT = Path("/project/cdc.yaml")

REMOTE = """\
project: shop
log: {bootstrap_servers: "a:9092, b:9093", history: 3d}
lake: {path: lake}
sources:
  shop:
    kind: postgres
    host: db.internal
    database: shop
    user: cdc
    password: {env: SHOP_PASSWORD}
    tables:
      - public.customers
      - name: public.orders
"""


def parse(text: str, *, dev: bool = False) -> Config:
    return parse_config(text.encode(), AT, dev=dev, shown="cdc.yaml")


def failing(text: str, *, dev: bool = False) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, dev=dev)
    return caught.value


def changed(old: str, new: str) -> str:
    assert REMOTE.count(old) == 1
    return REMOTE.replace(old, new)


def test_everything_derived_is_filled_in():
    config = parse(REMOTE)
    source = config.sources["shop"]
    assert config.root == Path("/project")
    assert config.state_dir == Path("/project/.cdc")
    assert config.lake.path == "/project/lake"
    assert config.log.bootstrap_servers == "a:9092,b:9093"
    assert config.log.history == timedelta(days=3)
    assert config.apply.interval == timedelta(seconds=30)
    assert (source.name, source.slot_name, source.publication_name) == (
        "shop",
        "cdc_shop_shop",
        "cdc_shop_shop",
    )
    assert source.publication.manage
    assert source.table_ids == (TableId("public", "customers"), TableId("public", "orders"))
    assert source.port == 5432
    assert config.spark.driver_memory == "2048m"
    assert not config.uses_local_stack


def test_no_log_means_the_local_stack():
    text = """\
project: p
sources: {s: {kind: postgres, local: true, database: d, tables: [public.t]}}
"""
    assert parse(text).log.local
    assert parse(text).uses_local_stack


# Each case: the text, and the whole message.
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "    tables:",
            "    tabels:",
            "cdc.yaml:5:3: sources.shop.tables: is missing\n"
            "cdc.yaml:11:5: sources.shop.tabels: unknown key; did you mean tables?",
        ),
        (
            "lake: {path: lake}",
            "lake: {pfad: lake}",
            "cdc.yaml:3:8: lake.pfad: unknown key; known here: path",
        ),
        (
            "lake: {path: lake}",
            "lakes: {path: lake}",
            "cdc.yaml:3:1: lakes: unknown key; did you mean lake?",
        ),
        (
            "kind: postgres",
            "kind: postgress",
            "cdc.yaml:6:5: sources.shop.kind: must be one of postgres; did you mean postgres?",
        ),
        (
            "project: shop",
            "project: Shop",
            "cdc.yaml:1:1: project: a name has 1 to 31 of a-z, 0-9 and _, and begins with a letter",
        ),
        (
            "history: 3d",
            "history: 3",
            "cdc.yaml:2:44: log.history: a duration is a whole number with a unit: "
            "500ms, 30s, 5m, 12h, 7d, 2w",
        ),
        (
            "    user: cdc\n",
            "    user: cdc\n    user: cdc2\n",
            "cdc.yaml:10:5: the key sources.shop.user is given twice, first in line 9",
        ),
        (
            "      - public.customers",
            "      - customers",
            "cdc.yaml:12:9: sources.shop.tables[0].name: a table is given as schema.table; a part "
            'with a dot, * or ? that is meant as it is stands in double quotes: "my.schema".table',
        ),
        (
            "      - public.customers",
            "      - public.orders",
            "cdc.yaml:13:9: sources.shop.tables[1]: the table public.orders is given twice",
        ),
        (
            "    host: db.internal\n",
            "    host: db.internal\n    port: '5432'\n",
            "cdc.yaml:8:5: sources.shop.port: must be a whole number",
        ),
        (
            "    host: db.internal\n",
            "    host: db.internal\n    port: 70000\n",
            "cdc.yaml:8:5: sources.shop.port: input should be less than or equal to 65535",
        ),
        (
            "    host: db.internal\n",
            "    host: db.internal\n    local: yes\n",
            "cdc.yaml:8:5: sources.shop.local: must be true or false",
        ),
        (
            "    host: db.internal\n",
            "    local: true\n",
            "cdc.yaml:10:5: sources.shop.password: local: true takes no password and no user",
        ),
        (
            "    host: db.internal\n",
            "",
            "cdc.yaml:5:3: sources.shop: host is missing (or give local: true for the local stack)",
        ),
        (
            "lake: {path: lake}",
            "lake: {path: 's3://bucket/lake'}",
            "cdc.yaml:3:8: lake.path: not supported yet: "
            "a lake that is not a folder of this machine",
        ),
        (
            "lake: {path: lake}",
            "spark: {conf: {spark.sql.extensions: x}}",
            "cdc.yaml:3:16: spark.conf.spark.sql.extensions: "
            "spark.sql.extensions is set by cdc itself",
        ),
        ("project: shop\n", "", "cdc.yaml:1:1: project: is missing"),
        ("project: shop\n", "project: shop\n\t- x\n", "cdc.yaml:2:1: not YAML: "),
    ],
)
def test_message_names_place_key_and_nearest_name(old: str, new: str, message: str):
    error = failing(changed(old, new))
    if message.endswith(": "):
        assert error.message.startswith(message)
    else:
        assert error.message == message
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("a%41b", "%"),
        ("100%", "%"),
        (r"a\\b", "\\"),
        (r"a\nb", "a control character (U+000A)"),
        (r"a\x7fb", "a control character (U+007F)"),
        (r"a\0b", "a control character (U+0000)"),
    ],
)
def test_a_lake_path_that_readers_take_for_another_is_refused(path: str, sign: str):
    error = failing(changed("{path: lake}", f'{{path: "{path}"}}'))
    assert error.message == (
        f"cdc.yaml:3:8: lake.path: the lake's folder has {sign} in its path, "
        "which not every reader of Delta tables takes as it is"
    )
    assert error.remedy is not None and "name a folder without %" in error.remedy
    assert error.code == "config_invalid"


@pytest.mark.parametrize("lake", ["lake: {path: lake}\n", "lake: {}\n", ""])
def test_the_folder_of_cdc_yaml_counts_too(lake: str):
    text = changed("lake: {path: lake}\n", lake)
    with pytest.raises(ConfigError) as caught:
        parse_config(text.encode(), Path("/a%20b/cdc.yaml"), shown="cdc.yaml")
    assert "lake.path: the lake's folder has % in its path" in caught.value.message
    assert caught.value.message.startswith("cdc.yaml:3:" if lake else "cdc.yaml:1:1")


def test_other_signs_in_a_lake_path_are_taken():
    path = "my lake #?:*[]{}()|&;,+=!@$^~<>'`é日"
    config = parse(changed("{path: lake}", f'{{path: "{path}"}}'))
    assert config.lake.path == f"/project/{path}"


def test_all_problems_are_told_at_once():
    error = failing(changed("kind: postgres", "kind: mysql").replace("user:", "usr:"))
    assert [line.split(": ")[1] for line in error.message.splitlines()] == [
        "sources.shop.kind",
        "sources.shop.usr",
    ]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("name: public.orders", "name: public.orders\n        delta: {x: 1}", "tables[1].delta"),
        (
            "name: public.orders",
            "name: public.orders\n        history: 1d",
            "tables[1].history",
        ),
        ("project: shop", "project: shop\nviews: {v: {key: [a], sql: select 1}}", "views"),
        (
            "project: shop",
            "project: shop\nindexes: {i: {from: shop.public.t, engine: opensearch, url: x}}",
            "indexes",
        ),
        (
            "project: shop",
            "project: shop\nwarehouses: {w: {url: {env: X}, tables: [a]}}",
            "warehouses",
        ),
        ("project: shop", "project: shop\nhttp: {listen: '0.0.0.0:80'}", "http.listen"),
    ],
)
def test_what_comes_later_is_refused_by_name(old: str, new: str, key: str):
    error = failing(changed(old, new))
    assert error.code == "config_unsupported"
    assert f"{key}: not supported yet: " in error.message


def test_a_table_has_a_key_of_its_own():
    config = parse(changed("name: public.orders", "name: public.orders\n        key: [shop, code]"))
    assert config.sources["shop"].keys == {TableId("public", "orders"): ("shop", "code")}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("name: public.orders\n        key: []", "tables[1].key"),
        ("name: public.orders\n        key: [a, a]", "a column is given twice"),
    ],
)
def test_a_key_that_is_none(entry, told):
    assert told in failing(changed("name: public.orders", entry)).message


def test_schema_policies_are_of_tables_before_patterns_before_the_source():
    plain = parse(REMOTE).sources["shop"]
    assert plain.schema_policies.of(TableId("public", "orders")) == "lenient"
    text = changed(
        "      - name: public.orders",
        '      - {name: "public.*", schema_policy: ignore}\n'
        "      - {name: public.orders, schema_policy: exception}\n"
        "    schema_policy: try_evolve",
    )
    policies = parse(text).sources["shop"].schema_policies
    assert policies.of(TableId("public", "orders")) == "exception"
    assert policies.of(TableId("public", "customers")) == "try_evolve"
    assert policies.of(TableId("public", "others")) == "ignore"


def test_an_unknown_schema_policy_names_its_place():
    error = failing(
        changed("name: public.orders", "name: public.orders\n        schema_policy: evolv")
    )
    assert error.message.startswith("cdc.yaml:14:")
    assert "tables[1].schema_policy" in error.message and "evolve" in error.message


CANARY = "c4nary-s3cret"


@pytest.mark.parametrize(
    "password",
    [
        CANARY,
        f"'{CANARY}'",
        f"{{{CANARY}}}",
        f"{{{CANARY}: 1}}",
        f"[{CANARY}]",
        f"{{env: [{CANARY}]}}",
        f"{{env: A, file: {CANARY}}}",
        f"*{CANARY}",
        f"!{CANARY} x",
        f'"{CANARY}',
        f"{{env: A}} {CANARY}",
        f"{{inline: {CANARY}}}",
        f"&{CANARY} *{CANARY}",
        f"| {CANARY}",
        f'"\\q{CANARY}"',
    ],
)
def test_no_error_shows_a_secret(password: str):
    error = failing(changed("{env: SHOP_PASSWORD}", password))
    assert CANARY not in str(error)
    assert CANARY not in repr(error)
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_inline_password_needs_dev_and_stays_hidden():
    text = changed("{env: SHOP_PASSWORD}", CANARY)
    assert "--dev" in failing(text).message
    config = parse(text, dev=True)
    assert config.sources["shop"].password_value() == CANARY
    assert CANARY not in repr(config) + str(config) + config.model_dump_json()


def test_dev_comes_from_the_environment_for_children(tmp_path, monkeypatch):
    file = tmp_path / "cdc.yaml"
    file.write_text(changed("{env: SHOP_PASSWORD}", CANARY))
    with pytest.raises(ConfigError, match="--dev"):
        load_config(file)
    monkeypatch.setenv("CDC_DEV", "1")
    assert load_config(file).dev


def test_secrets_resolve_at_use_only(tmp_path, monkeypatch):
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    source = parse(REMOTE).sources["shop"]
    with pytest.raises(ConfigError, match="SHOP_PASSWORD") as caught:
        source.password_value()
    assert caught.value.code == "secret_missing"
    monkeypatch.setenv("SHOP_PASSWORD", "later")
    assert source.password_value() == "later"
    assert "later" not in repr(source)


def test_secret_file_is_relative_to_cdc_yaml(tmp_path):
    file = tmp_path / "cdc.yaml"
    file.write_text(changed("{env: SHOP_PASSWORD}", "{file: secret}"))
    source = load_config(file).sources["shop"]
    with pytest.raises(ConfigError, match="cannot be read"):
        source.password_value()
    (tmp_path / "secret").write_bytes(b"from file\r\n")
    assert source.password_value() == "from file"


def test_missing_file_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none.yaml")
    assert caught.value.code == "config_missing"
    assert "cdc init" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("public.old-orders", TableId("public", "old-orders")),
        ("Public.Orders", TableId("Public", "Orders")),
        ("'\"a.b\".c'", TableId("a.b", "c")),
        ('\'"a""b"."c*"\'', TableId('a"b', "c*")),
        ("'public.a\".*?\"z'", TableId("public", "a.*?z")),
        ("public.wow[1]", TableId("public", "wow[1]")),
        ("public.été", TableId("public", "été")),
    ],
)
def test_table_names(name: str, table: TableId):
    assert parse(changed("public.customers", name)).sources["shop"].tables[0].id == table


@pytest.mark.parametrize(
    "name",
    [
        "a.b.c", "a.", ".a", "'\"a\".'", "'\"a.b'", "a." + "x" * 64, "'\"\".a'", "'*'", "a.b.*",
        "public.%", "'public.[ab]*'", "'public.{a,b}*'", "'*.'", "a.*" + "x" * 64, "'a.*!x'",
    ],
)  # fmt: skip
def test_bad_table_names(name: str):
    assert "tables[0].name" in failing(changed("public.customers", name)).message


def tables(text: str):
    return parse(changed("tables:\n      - public.customers\n      - name: public.orders", text))


def test_patterns_stand_beside_names():
    source = tables(
        "tables: [public.orders, sales.order_*, "
        '{name: "audit.*", except: [audit.tmp_*, audit.old]}]'
    ).sources["shop"]
    assert source.table_ids == (TableId("public", "orders"),)
    assert [pattern.text for pattern in source.patterns] == ["sales.order_*", "audit.*"]
    for schema, table, covered in [
        ("public", "orders", True),
        ("public", "order", False),
        ("sales", "order_", True),
        ("sales", "Order_1", False),
        ("audit", "a.b", True),
        ("audit", "tmp_1", False),
        ("audit", "old", False),
    ]:
        assert source.covers(TableId(schema, table)) is covered, table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tables: [a.*, {name: a.*}]", "tables[1]: the pattern a.* is given twice"),
        ("tables: [{name: a.b, except: [a.c]}]", "except: only a pattern has exceptions"),
        ("tables: [{name: a.*, except: [c]}]", "except[0]: a table is given as schema.table"),
        ("tables: [{name: a.*, key: [id]}]", "key: a key is of one table"),
    ],
)
def test_bad_patterns(text: str, message: str):
    with pytest.raises(ConfigError) as caught:
        tables(text)
    assert message in caught.value.message


def test_two_sources_do_not_share_a_slot():
    twice = REMOTE + REMOTE[REMOTE.index("  shop:") :].replace("  shop:", "  other:")
    assert len(parse(twice).sources) == 2
    error = failing(twice.replace("    user: cdc\n", "    user: cdc\n    slot: same\n"))
    assert "share one slot" in error.message


KEYS = sorted(
    {
        name
        for definition in config_schema()["$defs"].values()
        for name in definition.get("properties", {})
    }
    | set(config_schema()["properties"])
)


@given(st.text(max_size=400))
def test_any_text_is_accepted_or_a_config_error(text: str):
    try:
        parse_config(text.encode("utf-8", "surrogatepass"), AT)
    except ConfigError as error:
        assert error.message.startswith(str(AT))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), inner, max_size=5)
        ),
        max_leaves=20,
    )
)
def test_any_structure_is_accepted_or_a_config_error(data: object):
    # JSON is YAML; the schema's own words make it reach deep into the models.
    try:
        parse_config(json.dumps(data).encode(), AT)
    except ConfigError as error:
        for line in error.message.splitlines():
            place = line.removeprefix(f"{AT}:").split(":")
            assert int(place[0]) >= 1
            assert int(place[1]) >= 1


def test_schema_in_the_examples_is_current():
    path = ROOT / "deploy/examples/cdc.schema.json"
    assert json.loads(path.read_text()) == config_schema(), (
        f"cdc validate --schema > {path.relative_to(ROOT)}"
    )


def test_example_is_valid():
    config = load_config(ROOT / "deploy/examples/cdc.yaml")
    assert config.project


def with_types(types: str) -> str:
    return changed("kind: postgres", f"kind: postgres\n    types: {types}")


def test_types_have_policies_that_fit_them():
    config = parse(with_types('{date: string, timestamptz: "null", "text[]": array_null}'))
    policies = config.sources["shop"].policies_of(TableId("public", "orders"))
    assert policies.types == {"date": "string", "timestamptz": "null", "text[]": "array_null"}


@pytest.mark.parametrize(
    ("types", "told"),
    [
        (
            "{integer: clamp}",
            "clamp is for date, timestamp, timestamptz, numeric; Delta holds",
        ),
        ('{"date[]": clamp}', "clamp is for"),
        ("{integer: array}", "array is for arrays, such as integer[]"),
        ("{datee: clamp}", "not a type that has a rule of its own"),
        ("{date: arrays}", "did you mean array?"),
    ],
)
def test_a_policy_that_does_not_fit_its_type_is_refused(types: str, told: str):
    error = failing(with_types(types))
    assert error.code == "config_invalid"
    assert told in error.message
