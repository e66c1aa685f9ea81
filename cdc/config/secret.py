"""Secrets by reference: resolved only at use, masked everywhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from cdc.config.base import Model
from cdc.errors import ConfigError
from cdc.redaction import MASK, remember_secret

_LARGEST_SECRET = 64 * 1024


class Secret(Model):
    """``{env: NAME}`` or ``{file: PATH}``; with ``--dev`` also the text itself."""

    env: str | None = None
    file: str | None = None
    _inline: str | None = PrivateAttr(default=None)
    _root: Path = PrivateAttr(default=Path())

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, value: Any, handler: Any, info: ValidationInfo) -> Secret:
        context = info.context or {}
        if isinstance(value, str):
            if not context.get("dev"):
                raise PydanticCustomError(
                    "inline_secret",
                    "a secret is given by reference, {env: NAME} or {file: PATH}; "
                    "the text itself is accepted with --dev only",
                )
            secret: Secret = handler({})
            secret._inline = value
            return secret
        if not isinstance(value, dict | Secret):
            raise PydanticCustomError(
                "secret_shape", "a secret is given by reference: {env: NAME} or {file: PATH}"
            )
        secret = handler(value)
        if (secret.env is None) == (secret.file is None):
            raise PydanticCustomError("secret_shape", "a secret has exactly one of env and file")
        secret._root = context.get("root", Path())  # noqa: SLF001 - our own class
        return secret

    def value(self) -> str:
        """The secret itself; logs of this process mask it from now on.

        Raises:
            ConfigError: The variable is not set, or the file cannot be read.
        """
        text = self._read()
        remember_secret(text)
        return text

    def _read(self) -> str:
        if self._inline is not None:
            return self._inline
        if self.env is not None:
            text = os.environ.get(self.env)
            if text is None:
                raise ConfigError(
                    "secret_missing",
                    f"the environment variable {self.env}, which holds a secret, is not set",
                    remedy=f"export {self.env}=…",
                )
            return text
        path = self._root / Path(self.file or "").expanduser()
        try:
            with path.open("rb") as stream:
                data = stream.read(_LARGEST_SECRET + 1)
            if len(data) > _LARGEST_SECRET:
                raise ConfigError("secret_unreadable", f"the secret file {path} is too large")
            return data.decode().removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(
                "secret_missing", f"the secret file {path} cannot be read: {reason}"
            ) from None

    def __repr__(self) -> str:
        if self.env is not None:
            return f"Secret(env={self.env})"
        return f"Secret(file={self.file})" if self.file is not None else f"Secret({MASK})"

    __str__ = __repr__
