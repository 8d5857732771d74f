"""Styles, scripts and icons: read once and served under a path with their hash, so that browsers can cache them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

# The order matters: later rules win.
STYLES = (
    "tokens base shell controls status panels tables charts job "
    "steps graph forms system schedules templates webhooks overlays small-pages interaction narrow motion"
).split()
TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


@dataclass(frozen=True, slots=True)
class Assets:
    files: dict[str, bytes]
    hash: str


@cache
def assets() -> Assets:
    folder = files("treadle.dashboard") / "static"
    found = {"icon.svg": (folder / "icon.svg").read_bytes(), "treadle.css": _styles(folder)}
    for script in (folder / "js").iterdir():
        if script.name.endswith(".js"):
            found[f"js/{script.name}"] = script.read_bytes()
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(name.encode() + b"\0" + found[name] + b"\0")
    return Assets(found, digest.hexdigest()[:12])


def _styles(folder: Traversable) -> bytes:
    return b"\n".join((folder / "css" / f"{name}.css").read_bytes() for name in STYLES)


async def serve_asset(request: Request) -> Response:
    name = request.path_params["name"]
    body = assets().files.get(name)
    if body is None:
        raise HTTPException(404)
    # Another hash belongs to another version. The file is this version's, so it must not be cached under that name.
    kept = FOREVER if request.path_params["hash"] == assets().hash else {"Cache-Control": "no-store"}
    return Response(body, headers=kept, media_type=TYPES[name.rpartition(".")[2]])
