"""The ``.cdc`` folder beside cdc.yaml, and the addresses that a configuration stands for.

``.cdc`` holds locks, logs and the local stack, never state of the pipeline: it can be rebuilt.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdc.config import Config, SourceConfig
from cdc.errors import EnvironmentProblem
from cdc.redaction import remember_secret

LOCAL_STATE_VERSION = 1
_CONNECT_TIMEOUT_S = 10
_START_LOCAL = "cdc local up"


def state_folder(config: Config, *parts: str) -> Path:
    """``.cdc`` or a folder in it, made with mode 0700.

    Raises:
        EnvironmentProblem: ``state_folder``, when it cannot be made.
    """
    return make_state_folder(config.state_dir, *parts)


def make_state_folder(folder: Path, *parts: str) -> Path:
    """As ``state_folder``, for commands that need no configuration."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in parts:
            folder = folder / part
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            "state_folder", f"the folder {folder} cannot be made: {error.strerror}"
        ) from None
    return folder


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Replace ``path`` by a JSON object, whole or not at all; readable by its owner only."""
    # mkstemp makes the file with mode 0600.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(record, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None when there is no such file.

    Raises:
        EnvironmentProblem: ``state_unreadable``: not ours to read, or not a JSON object.
    """
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EnvironmentProblem(
            "state_unreadable", f"{path} cannot be read: {error.strerror}"
        ) from None
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise EnvironmentProblem("state_unreadable", f"{path} is not a JSON object")
    return record


@dataclass(frozen=True, slots=True)
class SourceEndpoint:
    """Where a source database is.

    Attributes:
        conninfo: Keywords for ``psycopg.connect``, password included.
    """

    conninfo: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of the log and of the sources, secrets resolved.

    Attributes:
        bootstrap_servers: ``host:port``, separated by commas.
        log_options: librdkafka's security options; empty for an open broker.
        sources: By source name.
    """

    bootstrap_servers: str
    log_options: dict[str, str] = field(repr=False)
    sources: dict[str, SourceEndpoint]

    def conninfo(self, source: str) -> dict[str, str]:
        """Keywords for ``psycopg.connect`` of one source."""
        return dict(self.sources[source].conninfo)


def resolve(config: Config) -> Endpoints:
    """Addresses of everything in ``config``; ``local: true`` from .cdc/local/state.json.

    Raises:
        ConfigError: ``secret_missing``.
        EnvironmentProblem: ``local_stack_missing``, ``local_state_unreadable``.
    """
    bootstrap_servers, log_options = resolve_log(config)
    return Endpoints(
        bootstrap_servers,
        log_options,
        {
            name: SourceEndpoint(source_conninfo(config, source))
            for name, source in config.sources.items()
        },
    )


def resolve_log(config: Config) -> tuple[str, dict[str, str]]:
    """Bootstrap servers and librdkafka's security options; no secret of a source is read.

    Raises:
        As ``resolve``.
    """
    log = config.log
    if log.local:
        return str(_local_part(config, "kafka", "bootstrap_servers")["bootstrap_servers"]), {}
    return log.bootstrap_servers or "", log.security.client_options() if log.security else {}


def source_conninfo(config: Config, source: SourceConfig) -> dict[str, str]:
    """Keywords for ``psycopg.connect`` of one source; the password is resolved here.

    Raises:
        As ``resolve``.
    """
    if source.local:
        state = _local_part(config, "postgres", "host", "port", "user", "password")
        conninfo = {name: str(state[name]) for name in ("host", "port", "user", "password")}
        remember_secret(conninfo["password"])
    else:
        host = source.host or ""
        conninfo = {"host": host, "port": str(source.port), "user": source.user or ""}
        # Off this machine nothing goes over the wire in the clear unless one asks for it.
        conninfo["sslmode"] = source.sslmode or ("prefer" if _is_here(host) else "require")
        if source.sslrootcert is not None:
            conninfo["sslrootcert"] = source.sslrootcert
        password = source.password_value()
        if password is not None:
            conninfo["password"] = password
    return {
        **conninfo,
        "dbname": source.database,
        "connect_timeout": str(_CONNECT_TIMEOUT_S),
    }


def _is_here(host: str) -> bool:
    return host.startswith("/") or host in ("localhost", "::1") or host.startswith("127.")


def _local_part(config: Config, part: str, *names: str) -> dict[str, Any]:
    path = config.state_dir / "local" / "state.json"
    state = read_json(path)
    if state is None:
        raise EnvironmentProblem(
            "local_stack_missing",
            f"cdc.yaml says local: true, and there is no local stack ({path})",
            remedy=_START_LOCAL,
        )
    found = state.get(part)
    if (
        state.get("v") != LOCAL_STATE_VERSION
        or not isinstance(found, dict)
        or any(found.get(name) is None for name in names)
    ):
        raise EnvironmentProblem(
            "local_state_unreadable",
            f"{path} is not a state file of this version",
            remedy=f"cdc destroy, then {_START_LOCAL}",
        )
    return found
