"""One page request: the caller, the targets of links, and the response."""

from __future__ import annotations

import base64
import gzip
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from treadle.accounts import Caller
from treadle.dashboard import words
from treadle.dashboard.assets import assets
from treadle.dashboard.folding import More, members
from treadle.dashboard.state import State
from treadle.http.errors import ApiError
from treadle.queue.audit import Actor

MAX_FORM = 2 * 1024 * 1024
PACKED_FROM = 4096
FLASH, THEME = "treadle_flash", "treadle_theme"
THEMES = ("light", "dark")
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class NavItem:
    name: str
    path: str
    icon: str
    key: str
    main: bool = False
    count: str = ""
    bad: bool = False


class NeedsSignIn(Exception):
    """The session is missing or has ended."""


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("treadle.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(words.FILTERS)
    made.filters["members"] = members
    made.filters["api"] = api_of
    made.tests["more"] = lambda value: isinstance(value, More)
    return made


def macros(name: str) -> Any:
    """The macros of one template file, so that live updates are drawn like the page."""
    return environment().get_template(f"macros/{name}.html").module


class Page:
    """A page requested by a superuser."""

    def __init__(self, request: Request, state: State, caller: Caller | None) -> None:
        self.request = request
        self.state = state.for_one_page()
        self.caller = caller
        self.base = base_of(request)
        self.now = datetime.now(UTC)
        self.nonce = secrets.token_urlsafe(16)
        self.read_only = state.queue.settings.read_only
        self.in_dialog = "x-dialog" in request.headers
        self._form: dict[str, list[str]] | None = None

    # -- what was asked ----------------------------------------------------------------------------

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    async def form(self) -> dict[str, list[str]]:
        if self._form is None:
            self._form = await read_form(self.request)
        return self._form

    async def field(self, name: str, default: str = "") -> str:
        values = (await self.form()).get(name)
        return values[0].strip() if values else default

    @property
    def path(self) -> str:
        """This page's address, to come back to."""
        url = self.request.url
        return url.path + (f"?{url.query}" if url.query else "")

    @property
    def address(self) -> str:
        """The dashboard's address for links outside the browser, without a trailing slash."""
        site = self.state.queue.settings.public_url.rstrip("/")
        if site:
            return f"{site}/_"
        # Not the Host header: whoever sent the request chose that, and a link must not lead to another site.
        host, port = self.request.scope.get("server") or ("localhost", None)
        name = f"[{host}]" if ":" in host else host
        return f"{self.request.url.scheme}://{name}{'' if port is None else f':{port}'}{self.base}"

    def local(self, address: str, default: str) -> str:
        """The address if it is on this site, else the default: a link must not lead to another site."""
        ours = address.startswith(f"{self.base}/") and "\\" not in address and "//" not in address.partition("?")[0]
        return address if ours else default

    def url(self, path: str, **query: Any) -> str:
        given = {name: value for name, value in query.items() if value not in ("", None)}
        return f"{self.base}{path}" + (f"?{urlencode(given)}" if given else "")

    @property
    def actor(self) -> Actor:
        assert self.caller is not None
        return Actor(self.caller.name, self.caller.kind)

    @property
    def who(self) -> str:
        """The person's id."""
        assert self.caller is not None
        return self.caller.account_id or ""

    async def note(self, action: str, target: str = "", *, filter: str = "", reason: str = "") -> None:
        """A change was made: keep it in the audit log, and show it."""
        await self.state.audit.add(self.actor, action, target, filter=filter, reason=reason)
        self.state.forget()

    # -- the answer --------------------------------------------------------------------------------

    async def render(self, template: str, status: int = 200, *, section: str = "", **context: Any) -> Response:
        fragment = context.get("fragment", False)
        flash = None if fragment else self._flash()
        html = (
            environment()
            .get_template(f"pages/{template}.html")
            .render(
                **self._common(),
                section=section,
                navigation=() if fragment or not self.caller else await self._navigation(),
                database=self.state.database,
                flash=flash,
                **{"live_url": "", **context},
            )
        )
        response = Response(*self._packed(html, status), media_type="text/html")
        if fragment:
            response.headers["X-Dialog"] = "1"
        if flash is not None:
            response.delete_cookie(FLASH, path=self.base)
        return response

    def _common(self) -> dict[str, Any]:
        settings = self.state.queue.settings
        theme = self.request.cookies.get(THEME, "")
        return {
            "base": self.base,
            "static": f"{self.base}/static/{assets().hash}",
            "nonce": self.nonce,
            "now": self.now,
            "here": self.path,
            "theme": theme if theme in THEMES else "",
            "environment": settings.environment,
            "environment_class": _environment_class(settings.environment),
            "read_only": self.read_only,
            "version": version("treadle"),
            "who": self.caller.name if self.caller else "",
        }

    async def _navigation(self) -> Sequence[tuple[str, Sequence[NavItem]]]:
        now = await self.state.now.get()
        failing = len(await self.state.failing_groups())
        schedules = await self.state.schedule_count.get()
        return [
            (
                "Watch",
                [
                    NavItem("Overview", "/", "overview", "o", main=True),
                    NavItem("Errors", "/errors", "errors", "e", main=True, count=str(failing or ""), bad=True),
                ],
            ),
            (
                "Work",
                [
                    NavItem("Jobs", "/jobs", "jobs", "j", main=True),
                    NavItem("Topics", "/topics", "topics", "t", main=True, count=str(len(now.topics) or "")),
                    NavItem("Schedules", "/schedules", "schedules", "c", count=schedules),
                ],
            ),
            (
                "Run",
                [
                    NavItem("Workers", "/workers", "workers", "w", count=str(len(now.workers) or "")),
                    NavItem("Webhooks", "/webhooks", "webhooks", "h"),
                ],
            ),
            (
                "Build",
                [
                    NavItem("Templates", "/templates", "templates", "p", count=str(len(now.templates) or "")),
                    NavItem("System", "/system", "system", "s"),
                ],
            ),
        ]

    def _packed(self, html: str, status: int) -> tuple[bytes, int, dict[str, str]]:
        """Compressed: a list of fifty jobs is 100 kB of markup and 10 kB compressed."""
        body, headers = html.encode(), self.headers()
        if len(body) > PACKED_FROM and "gzip" in self.request.headers.get("accept-encoding", ""):
            return gzip.compress(body, 4), status, {**headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return body, status, headers

    def headers(self) -> dict[str, str]:
        return {
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY.format(nonce=self.nonce),
            "Referrer-Policy": "same-origin",
        }

    def redirect(
        self, address: str, text: str = "", kind: str = "good", link: str = "", link_text: str = ""
    ) -> Response:
        """Redirect to another page, with a short message about what was done."""
        response = RedirectResponse(address, 303, {"Cache-Control": "no-store"})
        if text:
            told = to_json({"kind": kind, "text": text[:300], "link": link, "link_text": link_text})
            value = base64.urlsafe_b64encode(told).decode()
            response.set_cookie(FLASH, value, max_age=60, path=self.base, httponly=True, samesite="lax")
        return response

    def _flash(self) -> Mapping[str, str] | None:
        value = self.request.cookies.get(FLASH)
        if not value:
            return None
        try:
            told = from_json(base64.urlsafe_b64decode(value))
            link = self.local(str(told["link"]), "")
            return {
                "kind": str(told["kind"]),
                "text": str(told["text"]),
                "link": link,
                "link_text": str(told["link_text"]),
            }
        except (ValueError, KeyError, TypeError):
            return None


def read_only_error() -> ApiError:
    return ApiError(403, "read_only", "This dashboard is read-only: it shows everything and changes nothing.")


def base_of(request: Request) -> str:
    """The mount point of the dashboard without a trailing slash: `/_`, or `/queue/_` in another application."""
    return str(request.scope.get("root_path", ""))


def api_of(base: str) -> str:
    """Where the API is, for the scripts of a dashboard that is mounted here."""
    return base.removesuffix("/_")


async def read_form(request: Request) -> dict[str, list[str]]:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_FORM:
            raise ApiError(413, "body_too_large", f"The form is larger than {MAX_FORM:,} bytes.")
        chunks.append(chunk)
    found: dict[str, list[str]] = {}
    text = b"".join(chunks).decode("utf-8", "replace")
    for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=2000):
        found.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return found


def _environment_class(name: str) -> str:
    small = name.lower()
    if small.startswith(("dev", "local", "test", "demo")):
        return " env-dev"
    return " env-staging" if small.startswith(("stag", "pre", "qa")) else ""
