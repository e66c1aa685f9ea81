"""The status as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cdc.load_progress import share_words

_APART = {"dropped": "dropped at the source, NULL here", "ignored": "only at the source"}
_UNITS = ("B", "kB", "MB", "GB", "TB")


def render_status(status: Mapping[str, Any]) -> str:
    """What ``cdc status`` prints of ``collect_status``."""
    sources = [
        (
            name,
            source["state"],
            source["end_lsn"] or "-",
            _seconds(source["age_seconds"]),
            _bytes(source["slot_lag_bytes"]),
            _bytes((source["slot"] or {}).get("retained_bytes")),
            _slot_word(source["slot"]),
        )
        for name, source in status["sources"].items()
    ]
    tables = [
        _table_row(name, table_name, table, status["replicas"])
        for name, source in status["sources"].items()
        for table_name, table in source["tables"].items()
    ]
    parts = [
        _grid(("SOURCE", "STATE", "FRONTIER", "AGE", "SLOT LAG", "WAL KEPT", "SLOT"), sources),
    ]
    if tables:
        header = ("TABLE", "STATE", "LOAD", "REPLICA AT", "VERSION", "BEHIND", "SECONDS")
        parts.append(_grid(header, tables))
    loading = [
        _loading_row(f"{name}.{table_name}", load)
        for name, source in status["sources"].items()
        for table_name, table in source["tables"].items()
        if (load := table.get("loading")) is not None
    ]
    if loading:
        header = ("LOADING", "LOAD", "STATE", "CHUNKS", "ROWS", "ROWS/S", "LEFT")
        parts.append(_grid(header, loading))
    far = [
        (f"{name}.{column}", f"{count:,}")
        for name, replica in status["replicas"].items()
        for column, count in sorted(replica.get("out_of_range", {}).items())
    ]
    if far:
        parts.append(_grid(("COLUMN", "OUT OF RANGE"), far))
    apart = [
        (f"{name}.{table_name}.{column['name']}", _APART[column["why"]], column["since"])
        for name, source in status["sources"].items()
        for table_name, table in source["tables"].items()
        for column in table.get("columns_apart", ())
    ]
    if apart:
        parts.append(_grid(("COLUMN", "NOT ALIKE", "SINCE"), apart))
    problems = list(_problems(status))
    if problems:
        parts.append("\n".join(problems))
    return "\n\n".join(parts)


def _table_row(
    source: str, name: str, table: Mapping[str, Any], replicas: Mapping[str, Any]
) -> tuple[str, ...]:
    replica = replicas.get(f"{source}.{name}", {})
    return (
        f"{source}.{name}",
        table["state"],
        _figure(table["load"]),
        replica.get("end_lsn") or "-",
        _figure(replica.get("version")),
        _figure(replica.get("behind_records")),
        _seconds(replica.get("behind_seconds")),
    )


def _loading_row(table: str, load: Mapping[str, Any]) -> tuple[str, ...]:
    speed = load["rows_per_second"]
    return (
        table,
        _figure(load["load"]),
        load["state"],
        f"{load['chunks_done']:,} of {load['chunks']:,}" if load["chunks"] else "-",
        f"{load['rows']:,}{share_words(load['rows'], load['estimate'])}",
        "-" if speed is None else f"{speed:,.0f}",
        _seconds(load["seconds_left"]),
    )


def _problems(status: Mapping[str, Any]) -> Iterator[str]:
    for name, source in status["sources"].items():
        for error in (source["error"], source["source_error"]):
            if error:
                yield from _problem(f"source {name}", error["message"], error["remedy"])
        slot = source["slot"]
        if slot is not None and not slot.get("found") and source["state"] != "NotStarted":
            yield from _problem(f"source {name}", f"slot {slot['name']} is not there", None)
        for table, record in source["tables"].items():
            if record.get("reason"):
                yield from _problem(f"{name}.{table}", record["reason"], record.get("remedy"))
    for name, replica in status["replicas"].items():
        if replica["error"]:
            yield from _problem(name, replica["error"]["message"], replica["error"]["remedy"])


def _problem(where: str, message: str, remedy: str | None) -> Iterator[str]:
    yield f"{where}: {message}"
    if remedy:
        yield f"  remedy: {remedy}"


def _slot_word(slot: Mapping[str, Any] | None) -> str:
    if slot is None:
        return "unknown"
    if not slot.get("found"):
        return "missing"
    word = "active" if slot.get("active") else "inactive"
    lost = slot.get("wal_status") in ("unreserved", "lost")
    return f"{word}, {slot['wal_status']}" if lost else word


def _figure(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )
