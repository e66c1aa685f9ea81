"""The entries of ``tables``: names and patterns, alone or with options."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from cdc.config.base import Model, fail
from cdc.config.fields import Duration, Identifier, Policy, Text, refused
from cdc.names import TableId
from cdc.schema_policy import SchemaPolicy
from cdc.table_names import TablePattern


class TableConfig(Model):
    """One table by its name, or all that match a pattern; alone, or with options."""

    model_config = ConfigDict(populate_by_name=False)

    name: Text
    except_: Annotated[tuple[Text, ...], Field(alias="except")] = ()
    key: Annotated[tuple[Identifier, ...] | None, Field(min_length=1)] = None
    delta: Annotated[dict[str, Any] | None, refused("Delta options of a table")] = None
    types: Annotated[dict[Identifier, Policy], Field(default_factory=dict)]
    schema_policy: SchemaPolicy | None = None
    history: Annotated[Duration | None, refused("a history window of one table")] = None
    _pattern: TablePattern = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        TablePattern.parse(name)
        return name

    @field_validator("except_")
    @classmethod
    def _check_exceptions(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for index, name in enumerate(names):
            try:
                TablePattern.parse(name)
            except ValueError as error:
                raise fail("shape", str(error), index) from None
        return names

    @model_validator(mode="after")
    def _exceptions_of_a_pattern(self) -> Self:
        self._pattern = TablePattern.parse(self.name, self.except_)
        if self.except_ and self.id is not None:
            raise fail("conflict", "only a pattern has exceptions", "except")
        if self.key is not None and self.id is None:
            raise fail("conflict", "a key is of one table, which is given by its name", "key")
        if self.key is not None and len(set(self.key)) < len(self.key):
            raise fail("shape", "a column is given twice", "key")
        return self

    @property
    def pattern(self) -> TablePattern:
        """Which tables are meant."""
        return self._pattern

    @property
    def id(self) -> TableId | None:
        """Schema and table, as Postgres spells them; None: a pattern."""
        return self._pattern.id


def short_forms(schema: dict[str, Any]) -> None:
    """JSON schema of a model whose ``tables`` may be names alone."""
    items = schema["properties"]["tables"]["items"]
    schema["properties"]["tables"]["items"] = {"anyOf": [{"type": "string"}, items]}
