"""The table of docs/types.md, made from the codecs. ``python -m tests.support.types_doc``."""

from pathlib import Path

from cdc import codecs
from cdc.codecs import to_json
from cdc.schema import Column, WireType

DOC = Path(__file__).parents[2] / "docs" / "types.md"
BEGIN, END = "<!-- types -->\n", "<!-- /types -->\n"
FORMS: dict[codecs.JsonEncoder, str] = {
    to_json.boolean: "`true`, `false`",
    to_json.plain: "number",
    to_json.floating: 'number in its shortest form, `-0.0`; `"NaN"`, `"Infinity"`, `"-Infinity"`',
    to_json.quoted: "string, as Postgres prints it",
    to_json.text: "string, as Postgres prints it",
    to_json.binary: "string, base64",
    to_json.timestamp: '`"2024-02-29T01:02:03.000000"`; out of range: Postgres\' text',
    to_json.timestamptz: '`"2024-02-29T01:02:03.000000Z"`; out of range: Postgres\' text',
}


def column(oid, typmod=-1, *, array=False):
    return Column(1, "c", oid, typmod, "", False, wire=WireType(oid, typmod, array))


def row(name, form, found):
    policy = "yes" if codecs.bends(found) else ""
    return f"| {name} | {form} | {codecs.delta_type(found)} | {policy} |"


def table():
    lines = ["| Postgres | JSON in the log | Delta | Out of range |", "|---|---|---|---|"]
    for oid, codec in codecs.CODECS.items():
        name = codec.name
        if oid == codecs.NUMERIC:
            typmod = (38 << 16 | 10) + 4
            form = FORMS[codec.to_json]
            lines.append(row("numeric(p,s), p ≤ 38, 0 ≤ s ≤ p", form, column(oid, typmod)))
            name = "numeric otherwise"
        lines.append(row(name, FORMS[codec.to_json], column(oid)))
    lines.append(row("arrays of any of these", "nested arrays", column(codecs.INT4, array=True)))
    lines.append(row("any other type", FORMS[codecs.OTHER.to_json], column(16400)))
    return "\n".join(lines).replace("DECIMAL(38,10)", "DECIMAL(p,s)") + "\n"


def document(old):
    before, rest = old.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    DOC.write_text(document(DOC.read_text()))
