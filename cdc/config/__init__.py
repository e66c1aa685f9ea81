"""cdc.yaml: its shape, its checks and its error messages."""

from cdc.config.loader import DEV_VARIABLE, load_config, parse_config
from cdc.config.models import Config, LogConfig, SourceConfig
from cdc.config.secret import Secret

__all__ = [
    "DEV_VARIABLE",
    "Config",
    "LogConfig",
    "Secret",
    "SourceConfig",
    "load_config",
    "parse_config",
]
