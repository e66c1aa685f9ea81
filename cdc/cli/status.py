"""``cdc status``: how far everything is; works with and without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from cdc.cli.options import ConfigOption, DevOption, JsonOption, command

if TYPE_CHECKING:
    from cdc.config import Config


def status(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    dev: DevOption = False,
) -> None:
    """Show each source's slot and tables, each derived table's position and lag."""
    with command(context, "status", config, as_json, dev) as (common, output):
        from cdc.cli.loading import add_figures
        from cdc.status import collect_status

        loaded = common.load()
        result = {**collect_status(loaded), "daemon": _daemon(loaded)}
        add_figures(result["sources"], result["daemon"].get("children", []))
        output.answer("status", result, human=lambda: _human(result))


def _daemon(config: Config) -> dict[str, Any]:
    from cdc.daemon.client import daemon_status
    from cdc.daemon.record import running_daemon
    from cdc.errors import CdcError

    try:
        daemon = running_daemon(config)
        if daemon is None:
            return {"running": False}
        return {
            "running": True,
            "pid": daemon.pid,
            "http": daemon.http,
            "started": daemon.started,
            "children": daemon_status(daemon)["children"],
        }
    except CdcError as error:
        # The rest of the status does not need the daemon.
        return {"running": None, "error": error.to_json()}


def _human(result: dict[str, Any]) -> str:
    from cdc.status import render_status

    daemon = result["daemon"]
    return "\n\n".join([_daemon_line(daemon), *_problems(daemon), render_status(result)])


def _daemon_line(daemon: dict[str, Any]) -> str:
    if daemon["running"]:
        return f"daemon: runs since {daemon['started']} (pid {daemon['pid']}, {daemon['http']})"
    if daemon["running"] is None:
        return f"daemon: {daemon['error']['message']}"
    return "daemon: not running (cdc start)"


def _problems(daemon: dict[str, Any]) -> list[str]:
    lines = []
    for child in daemon.get("children", []):
        error = child.get("error")
        if error and child.get("phase") != "running":
            lines.append(f"{child['name']} ({child['phase']}): {error.get('message')}")
            if error.get("remedy"):
                lines.append(f"  remedy: {error['remedy']}")
    return ["\n".join(lines)] if lines else []
