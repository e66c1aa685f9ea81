"""How clients reach a Kafka that is not open: an allow-list, never arbitrary client options."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from cdc.config.base import Model
from cdc.config.fields import FilePath, Text
from cdc.config.secret import Secret


class LogSecurity(Model):
    """TLS and SASL for all clients of the log."""

    protocol: Literal["SSL", "SASL_SSL", "SASL_PLAINTEXT"]
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] | None = None
    username: Text | None = None
    password: Secret | None = None
    ca_file: FilePath | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        sasl = (self.mechanism, self.username, self.password)
        if self.protocol.startswith("SASL") and None in sasl:
            raise PydanticCustomError(
                "conflict", "SASL takes all of mechanism, username and password"
            )
        if self.protocol == "SSL" and any(part is not None for part in sasl):
            raise PydanticCustomError(
                "conflict", "protocol SSL takes no mechanism, username or password"
            )
        return self

    def client_options(self) -> dict[str, str]:
        """Options for librdkafka, the password resolved now.

        Raises:
            ConfigError: The password's reference does not resolve.
        """
        options: dict[str, str] = {"security.protocol": self.protocol}
        if self.ca_file is not None:
            options["ssl.ca.location"] = self.ca_file
        if self.mechanism is not None and self.password is not None:
            options["sasl.mechanism"] = self.mechanism
            options["sasl.username"] = self.username or ""
            options["sasl.password"] = self.password.value()
        return options
