"""``cdc status``: how far slots, log, tables and replicas are; works without a daemon."""

from cdc.status.collect import collect_status
from cdc.status.render import render_status

__all__ = ["collect_status", "render_status"]
