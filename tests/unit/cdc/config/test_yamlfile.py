"""Which YAML is accepted, and where things are in it."""

from __future__ import annotations

import pytest

from cdc.config.yamlfile import MAX_BYTES, YamlProblem, parse_yaml


def test_places_count_from_one():
    parsed = parse_yaml("a: 1\nü: [x, {c: yes}]\nd: 2020-01-01\n".encode())
    assert parsed.data == {"a": 1, "ü": ["x", {"c": "yes"}], "d": "2020-01-01"}
    assert parsed.place(("ü",)) == (2, 1)
    assert parsed.place(("ü", 1, "c")) == (2, 9)
    assert parsed.place(("ü", 1, "none")) == (2, 8)
    assert parsed.place(("none",)) == (1, 1)


def test_scalars_are_those_of_yaml_1_2():
    parsed = parse_yaml(b"a: no\nb: 0o7\nc: true\nd: ~\ne: 1.5\nf: '1'\ng: 012\n")
    assert parsed.data == {
        "a": "no", "b": 7, "c": True, "d": None, "e": 1.5, "f": "1", "g": 12,
    }  # fmt: skip


def test_an_alias_stands_for_its_anchor():
    assert parse_yaml(b"a: &x [1]\nb: *x\n").data == {"a": [1], "b": [1]}


def bomb() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 10)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        (b"a: 1\na: 2", "given twice", (2, 1)),
        (b"a: {b: {c: 1, c: 2}}", "the key a.b.c is given twice", (1, 15)),
        (b"a: &x {b: *x}", "inside of what it stands for", (1, 4)),
        (b"[" * 5000, "nested deeper", (1, 33)),
        (b"a: !!python/object/apply:os.system [x]", "tags are not accepted", (1, 4)),
        (b"a: !x y", "tags are not accepted", (1, 4)),
        (b"a: b: c", "not YAML", (1, 5)),
        (b"a: 1\nb: \x01", "not allowed", (2, 4)),
        (b"a: 1\nb: \xff", "not UTF-8", (2, 4)),
        (b"a: &x {b: 1}\nc:\n  <<: *x", "merge keys", (3, 3)),
        (b"a: 1\n---\nb: 2", "more than one document", (2, 1)),
        (b"? [a]\n: b", "a key must be a name", (1, 3)),
        (b"a: " + b"x" * MAX_BYTES, "larger than", (1, 1)),
    ],
)
def test_what_is_refused(text: bytes, message: str, place: tuple[int, int]):
    with pytest.raises(YamlProblem, match=message) as caught:
        parse_yaml(text)
    assert (caught.value.line, caught.value.column) == place


def test_aliases_cannot_blow_up():
    with pytest.raises(YamlProblem, match="more than"):
        parse_yaml(bomb())
