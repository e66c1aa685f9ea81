"""What all parts of cdc.yaml's shape are made of."""

from __future__ import annotations

from typing import LiteralString

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Model(BaseModel):
    """Unknown keys refused, values fixed after loading, inputs never shown in errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True
    )


def fail(
    kind: LiteralString, message: str, at: str | int | None = None, remedy: str | None = None
) -> PydanticCustomError:
    """An error of a model, or of its key or list item ``at``."""
    return PydanticCustomError(kind, "{reason}", {"reason": message, "at": at, "remedy": remedy})
