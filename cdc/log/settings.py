"""Settings of the Kafka clients: what cdc.yaml may say, and what all of ours share."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any, Final

from cdc.errors import ConfigError

#: Keys that ``log.security`` may hold, in librdkafka's own spelling. An allow-list, because
#: arbitrary client properties load code and read files (``plugin.library.paths`` and so on).
SECURITY_KEYS: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
    }
)
#: For commands: a person shall not wait longer, seconds, for brokers that refuse connections.
COMMAND_REFUSED_AFTER: Final = 5.0
_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "security.protocol": frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}),
    "sasl.mechanism": frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}),
}

# librdkafka writes to stderr by itself unless it has a logger; its lines can hold addresses
# but no records and no secrets.
_client_log = logging.getLogger("cdc.log.client")


def check_security(security: Mapping[str, str]) -> None:
    """Refuse keys and values that ``log.security`` may not hold.

    Raises:
        ConfigError: ``unknown_key`` or ``bad_value``; never with the value of a secret.
    """
    for key, value in security.items():
        if key not in SECURITY_KEYS:
            near = difflib.get_close_matches(key, sorted(SECURITY_KEYS), 1)
            raise ConfigError(
                "unknown_key",
                f"log.security: {key!r} is not a known key",
                remedy=f"did you mean {near[0]!r}?"
                if near
                else "known: " + ", ".join(sorted(SECURITY_KEYS)),
            )
        allowed = _VALUES.get(key)
        if allowed is not None and value.upper() not in allowed:
            raise ConfigError(
                "bad_value",
                f"log.security: {key} has an unknown value",
                remedy="one of " + ", ".join(sorted(allowed)),
            )


def client_settings(bootstrap: str, security: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Settings that every client of ours shares.

    Args:
        bootstrap: ``host:port[,host:port…]``.
        security: ``log.security`` with its secrets resolved.

    Raises:
        ConfigError: A key or value that ``log.security`` may not hold.
    """
    chosen = dict(security or {})
    check_security(chosen)
    for key in _VALUES:
        if key in chosen:
            chosen[key] = chosen[key].upper()
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "cdc",
        "logger": _client_log,
        # Only what is critical: it repeats itself at each retry, and we raise what matters.
        "log_level": 2,
        # A broker that was killed is back within seconds; the default lets us wait 10 s.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        # Brokers make topics that are asked for, by default; one that was deleted must be missed.
        "allow.auto.create.topics": False,
        **chosen,
    }
