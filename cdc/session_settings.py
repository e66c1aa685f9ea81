"""Session settings shared by the snapshot and the stream, so that both print equal bytes."""

from __future__ import annotations

#: GUC name to value. ``extra_float_digits=3`` prints floats in the shortest exact form.
SETTINGS: dict[str, str] = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "3",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    "lock_timeout": "10s",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

#: The same as libpq's ``options`` keyword, for connections that cannot run SET.
OPTIONS = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())

CLIENT_ENCODING = "UTF8"
