"""The daemon: supervised children, HTTP, metrics and commands."""
