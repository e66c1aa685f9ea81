"""The JSON schema of cdc.yaml, for editors; deploy/examples/cdc.schema.json is made from it."""

from __future__ import annotations

from typing import Any

from cdc.config.models import Config


def config_schema() -> dict[str, Any]:
    """The schema as a JSON object (draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cdc.yaml",
        **{key: value for key, value in Config.model_json_schema().items() if key != "title"},
    }
