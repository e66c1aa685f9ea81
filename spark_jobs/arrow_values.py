"""Records to exact values of a replica's columns, many at a time, by Arrow's JSON reader.

What Arrow refuses (``NaN`` of a float, a date that it cannot hold, text that is not one of our
records) is read again one by one by ``cdc.codecs``, which knows what to make of it and names
what is wrong. So this is a faster way to the same values, never another opinion.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from cdc import codecs
from cdc.envelope import parse_record
from cdc.errors import LogError
from cdc.fold import Outcome
from cdc.position import Position
from cdc.schema import Column
from spark_jobs.fold_small import OutOfRange, outcome_table
from spark_jobs.layout import Layout

_TOMBSTONE: Final = b'{"op":"d"}'
_CREATES: Final = ("c", "r", "u")
#: Arrow takes years that neither Spark nor Python can hold.
_FIRST_DAY: Final = -719_162
_DAY_US: Final = 86_400_000_000


class Newest(NamedTuple):
    """The newest record of a key, as read.

    Args:
        key: Record key.
        value: Record value; None: a tombstone.
        position: Text of its position.
        version: Schema version's text.
        partition: Of the topic.
        offset: In the partition.
    """

    key: bytes
    value: bytes | None
    position: bytes
    version: bytes
    partition: int
    offset: int


class _Refused(Exception):
    """Arrow does not take these records."""


def bad_record(topic: str, partition: int, offset: int) -> LogError:
    """The error for a record that capture did not write."""
    return LogError(
        "bad_record",
        f"record {topic}[{partition}]@{offset} is not one of ours",
        remedy="only capture may write this topic; rebuild it with a new load",
    )


class _Converted:
    """A column's values by ``cdc.codecs``."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._exact = codecs.from_json(column)
        self._bends = codecs.bends(column)
        self.kind = codecs.arrow_type(column)

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        if self._bends and codecs.is_out_of_range(self._column, value):
            # It has to be counted.
            raise _Refused
        return self._exact(value)


class ArrowValues:
    """Reads records of one table.

    Args:
        layout: The replica's columns.
        topic: For messages.
    """

    def __init__(self, layout: Layout, topic: str) -> None:
        self._layout = layout
        self._topic = topic
        self._fields = layout.arrow_schema(gone=True)
        self._columns = [self._fields.field(i) for i in range(len(layout.schema.columns))]
        #: What Arrow's reader cannot make: text that is not the JSON value itself, and arrays.
        self._by_python = {
            i: _Converted(column)
            for i, column in enumerate(layout.schema.columns)
            if column.element is not None
            or (
                codecs.delta_type(column) == "STRING"
                and codecs.from_json(column) is not codecs.same
            )
        }
        self._read = [i for i in range(len(self._columns)) if i not in self._by_python]
        names = layout.schema.column_names
        row = pa.struct([(names[i], _json_type(self._columns[i].type)) for i in self._read])
        self._envelope = pa.schema([pa.field("op", pa.string()), pa.field("after", row)])
        simple = layout.simple_key
        self._key_index = None
        if simple is not None:
            self._key_index = layout.schema.column_names.index(simple.name)
            kind = _json_type(self._columns[self._key_index].type)
            self._key_schema = pa.schema([pa.field(simple.name, kind)])

    def table(self, records: Sequence[Newest], far: list[OutOfRange] | None = None) -> Any:
        """One row per record, in the replica's columns and ``_cdc_gone``.

        Args:
            records: Whole rows: none of them has unsent columns.
            far: As for ``outcome_table``.

        Raises:
            LakeError: ``value_out_of_range``, naming table and column.
            LogError: ``bad_record``.
        """
        try:
            return self._by_arrow(records)
        except (_Refused, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            return self._one_by_one(records, far)

    # --- inside ---

    def _by_arrow(self, records: Sequence[Newest]) -> Any:
        values = [_TOMBSTONE if r.value is None else r.value for r in records]
        read = _read_lines(values, self._envelope)
        op, after = read.column(0), read.column(1)
        creates = pc.is_in(op, pa.array(_CREATES))
        known = pc.or_(creates, pc.equal(op, "d"))
        fine = pc.equal(creates, after.is_valid())
        if not pc.all(pc.and_(pc.fill_null(known, False), fine)).as_py():
            raise _Refused
        found = dict(zip(self._read, after.flatten(), strict=True))
        found |= self._converted(records)
        columns = []
        for index, field in enumerate(self._columns):
            if index == self._key_index:
                keys = _read_lines([r.key for r in records], self._key_schema).column(0)
                if keys.null_count:
                    raise _Refused
                columns.append(_exact(keys, field.type))
            else:
                columns.append(_exact(found[index], field.type))
        columns.append(pa.array([int(r.position[5:21], 16) for r in records], pa.int64()))
        if self._key_index is None:
            columns.append(pa.array([r.key.decode() for r in records], pa.string()))
        columns.append(pc.invert(creates))
        return pa.Table.from_arrays(columns, schema=self._fields)

    def _converted(self, records: Sequence[Newest]) -> dict[int, Any]:
        """Values of the columns that Arrow cannot make."""
        if not self._by_python:
            return {}
        rows = [{} if r.value is None else orjson.loads(r.value)["after"] or {} for r in records]
        names = self._layout.schema.column_names
        return {
            index: pa.array([convert(row.get(names[index])) for row in rows], convert.kind)
            for index, convert in self._by_python.items()
        }

    def _one_by_one(self, records: Sequence[Newest], far: list[OutOfRange] | None = None) -> Any:
        outcomes = {}
        for r in records:
            headers = [("cdc.position", r.position), ("cdc.schema", r.version)]
            parsed = parse_record(self._topic, r.partition, r.offset, r.key, r.value, headers)
            row = parsed.after if parsed.op in _CREATES else None
            if parsed.op in _CREATES and not isinstance(row, dict):
                raise bad_record(self._topic, r.partition, r.offset)
            outcomes[r.key] = Outcome(row, Position.parse(r.position.decode()))
        return outcome_table(self._layout, outcomes, None, far)


def _json_type(kind: Any) -> Any:
    """What the envelope's value is read as: text where Arrow's reader is less strict."""
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    # Read as text: its scale and precision are checked by the cast.
    return pa.string() if pa.types.is_decimal(kind) else kind


def _read_lines(lines: Sequence[bytes], schema: Any) -> Any:
    """JSON objects as a record batch of exactly these columns."""
    data = b"\n".join(lines)
    # Arrow skips empty lines and does not look at UTF-8.
    if data.count(b"\n") != len(lines) - 1 or not all(lines):
        raise _Refused
    data.decode()
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    ).combine_chunks()
    if table.num_rows != len(lines) or table.schema.types != schema.types:
        raise _Refused
    return table.to_batches()[0]


def _exact(values: Any, kind: Any) -> Any:
    if values.type == kind:
        if pa.types.is_floating(kind) and pc.any(pc.is_inf(values)).as_py():
            raise _Refused
        return values
    if pa.types.is_binary(kind):
        decoded = [
            None if text is None else binascii.a2b_base64(text) for text in values.to_pylist()
        ]
        return pa.array(decoded, kind)
    if pa.types.is_date(kind):
        return _within_years(pc.cast(values, kind), pa.int32(), _FIRST_DAY)
    if pa.types.is_timestamp(kind):
        lengths = pc.min_max(pc.utf8_length(values)).as_py()
        wanted = 27 if kind.tz else 26
        if lengths["min"] not in (None, wanted) or lengths["max"] not in (None, wanted):
            raise _Refused
        separators = pc.utf8_slice_codeunits(values, 10, 11)
        if not pc.all(pc.equal(separators, "T")).as_py():
            raise _Refused
        return _within_years(pc.cast(values, kind), pa.int64(), _FIRST_DAY * _DAY_US)
    return pc.cast(values, kind)


def _within_years(values: Any, integer: Any, first: int) -> Any:
    lowest = pc.min(values.view(integer)).as_py()
    if lowest is not None and lowest < first:
        raise _Refused
    return values
