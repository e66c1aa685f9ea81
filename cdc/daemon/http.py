"""The daemon's HTTP: health, readiness, metrics, and commands for the bearer of the token."""

from __future__ import annotations

import hmac
import json
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cdc.daemon.metrics import registry
from cdc.daemon.supervisor import Supervisor
from cdc.errors import CdcError, ConfigError

_LARGEST_BODY = 64 * 1024
_LONGEST_ID = 200


def http_app(supervisor: Supervisor, token: str) -> Starlette:
    """The application; ``token`` guards everything under /v1."""
    metrics = registry(lambda: supervisor.views, lambda: not supervisor.unready())

    async def health(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_request: Request) -> Response:
        reasons = supervisor.unready()
        return JSONResponse(
            {"ready": not reasons, "reasons": reasons}, status_code=503 if reasons else 200
        )

    async def show_metrics(_request: Request) -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    async def post_command(request: Request) -> Response:
        if not _authorized(request, token):
            return _unauthorized()
        body = await _bounded_body(request)
        if body is None:
            return _refused(413, ConfigError("body_too_large", "the body is too large"))
        try:
            command_id, verb, args = _parse_command(body)
            record = supervisor.submit(command_id, verb, args)
        except ConfigError as error:
            return _refused(409 if error.code == "command_id_taken" else 400, error)
        return JSONResponse(record.to_json(), status_code=202)

    async def get_command(request: Request) -> Response:
        if not _authorized(request, token):
            return _unauthorized()
        record = supervisor.commands.get(request.path_params["command_id"])
        if record is None:
            return _refused(404, ConfigError("unknown_command", "no command has this id"))
        return JSONResponse(record.to_json())

    async def status(request: Request) -> Response:
        if not _authorized(request, token):
            return _unauthorized()
        return JSONResponse(
            {
                "v": 1,
                "started": supervisor.started,
                "draining": supervisor.draining,
                "children": [view.to_json() for view in supervisor.views],
            }
        )

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", show_metrics),
            Route("/v1/status", status),
            Route("/v1/commands", post_command, methods=["POST"]),
            Route("/v1/commands/{command_id}", get_command),
        ],
        # A page in a browser must not reach us under a name of its own (DNS rebinding).
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost", "[::1]"])
        ],
    )


def _authorized(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "")
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


def _unauthorized() -> Response:
    response = _refused(401, ConfigError("unauthorized", "the bearer token is missing or wrong"))
    response.headers["www-authenticate"] = "Bearer"
    return response


def _refused(status: int, error: CdcError) -> Response:
    return JSONResponse({"v": 1, "error": error.to_json()}, status_code=status)


async def _bounded_body(request: Request) -> bytes | None:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_BODY:
            return None
    return body


def _parse_command(body: bytes) -> tuple[str, str, dict[str, Any]]:
    """Read ``{"id","verb","args"}``; raises ConfigError ``bad_command``."""
    try:
        record = json.loads(body)
    except ValueError:
        record = None
    if isinstance(record, dict):
        command_id, verb, args = record.get("id"), record.get("verb"), record.get("args", {})
        if (
            isinstance(command_id, str)
            and 0 < len(command_id) <= _LONGEST_ID
            and isinstance(verb, str)
            and isinstance(args, dict)
        ):
            return command_id, verb, args
    raise ConfigError("bad_command", 'a command is {"id": text, "verb": text, "args": object}')
