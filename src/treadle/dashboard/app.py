"""The dashboard's routes, and the application that serves them together with the HTTP API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from treadle.dashboard.asking import Question, ask
from treadle.dashboard.assets import serve_asset
from treadle.dashboard.page import NeedsSignIn, Page, base_of, read_only_error
from treadle.dashboard.pages import (
    audit_export,
    bulk,
    enqueue,
    errors,
    find,
    job,
    job_actions,
    jobs,
    live,
    overview,
    run_again,
    scan,
    schedule_edit,
    schedules,
    sign_in,
    steps,
    system,
    template,
    templates,
    topics,
    webhooks,
    whole,
    workers,
)
from treadle.dashboard.state import State
from treadle.http import create_app as create_api
from treadle.http.application_auth import Auth
from treadle.http.errors import ApiError, from_treadle
from treadle.http.server import Server, Servers
from treadle.model.errors import TreadleError

if TYPE_CHECKING:
    from treadle.queue import Queue

Handler = Callable[[Page], Awaitable[Response]]


def create_app(queue: Queue, *, auth: Auth | None = None, worker_metrics: Sequence[Any] = ()) -> FastAPI:
    """The HTTP API of a queue and its dashboard, to serve directly or to mount in another application."""
    return create_api(queue, auth=auth, worker_metrics=worker_metrics, pages=Dashboard)


class Dashboard:
    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._states: dict[Server, State] = {}

    @property
    def routes(self) -> list[BaseRoute]:
        app = Starlette(
            routes=[
                Route("/static/{hash}/{name:path}", serve_asset),
                *self._sign_in(),
                *self._jobs(),
                *self._planning(),
                *self._webhooks(),
                *self._running(),
            ],
            exception_handlers={
                NeedsSignIn: _to_sign_in,
                ApiError: self._api_error,
                TreadleError: self._treadle_error,
                HTTPException: self._http_error,
            },
        )
        app.router.redirect_slashes = False
        return [Route("/_", _to_slash), Mount("/_", app)]

    def _sign_in(self) -> list[BaseRoute]:
        """Signing in and out, and the first superuser."""
        return [
            Route("/login", self._open(sign_in.login)),
            Route("/login", self._open(sign_in.sign_in), methods=["POST"]),
            Route("/logout", self._open(sign_in.sign_out), methods=["POST"]),
            Route("/setup", self._open(sign_in.setup)),
            Route("/setup", self._open(sign_in.set_up), methods=["POST"]),
            Route("/invitation", self._open(sign_in.invitation)),
            Route("/invitation", self._open(sign_in.accept), methods=["POST"]),
        ]

    def _jobs(self) -> list[BaseRoute]:
        """The overview, jobs, and what happens to many of them."""
        return [
            Route("/", self._shown(overview.overview)),
            Route("/find", self._shown(find.find)),
            Route("/shortcuts", self._shown(find.shortcuts)),
            Route("/live", self._shown(live.live)),
            Route("/jobs", self._shown(jobs.jobs)),
            Route("/scan", self._shown(scan.scan)),
            Route("/scan", self._shown(scan.start), methods=["POST"]),
            Route("/scan/stop", self._shown(scan.stop), methods=["POST"]),
            Route("/jobs/new", self._shown(enqueue.form)),
            Route("/jobs/new", self._changing(enqueue.enqueue), methods=["POST"]),
            Route("/jobs/{id}", self._shown(job.job)),
            Route("/jobs/{id}/step", self._shown(steps.step)),
            Route("/jobs/{id}/run-again", self._shown(run_again.form)),
            Route("/jobs/{id}/run-again", self._changing(run_again.run), methods=["POST"]),
            Route("/jobs/{id}/answer", self._changing(steps.answer), methods=["POST"]),
            Route("/jobs/{id}/payload", self._shown(whole.payload)),
            Route("/jobs/{id}/payload.json", self._shown(whole.payload_file)),
            Route("/jobs/{id}/result", self._shown(whole.result)),
            Route("/jobs/{id}/result.json", self._shown(whole.result_file)),
            Route("/jobs/{id}/code", self._shown(whole.code)),
            Route("/jobs/{id}/{action}", self._shown(job_actions.ask)),
            Route("/jobs/{id}/{action}", self._changing(job_actions.act), methods=["POST"]),
            Route("/bulk", self._shown(bulk.ask)),
            Route("/bulk", self._changing(bulk.act), methods=["POST"]),
            Route("/operations/{id}", self._shown(bulk.operation)),
            Route("/operations/{id}/stop", self._changing(bulk.stop), methods=["POST"]),
            Route("/errors", self._shown(errors.errors)),
        ]

    def _planning(self) -> list[BaseRoute]:
        """Topics, schedules and templates."""
        return [
            Route("/topics", self._shown(topics.topics)),
            Route("/topics/{topic}/pause", self._shown(topics.ask_pause)),
            Route("/topics/{topic}/pause", self._changing(topics.pause), methods=["POST"]),
            Route("/topics/{topic}/resume", self._changing(topics.resume), methods=["POST"]),
            Route("/schedules", self._shown(schedules.schedules)),
            Route("/new-schedule", self._shown(schedule_edit.new)),
            Route("/new-schedule", self._changing(schedule_edit.save), methods=["POST"]),
            Route("/schedule-preview", self._shown(schedule_edit.preview), methods=["POST"]),
            Route("/schedules/{id}", self._shown(schedule_edit.edit)),
            Route("/schedules/{id}", self._changing(schedule_edit.save), methods=["POST"]),
            Route("/schedules/{id}/run", self._changing(schedules.run), methods=["POST"]),
            Route("/schedules/{id}/enable", self._changing(schedules.enable), methods=["POST"]),
            Route("/schedules/{id}/disable", self._changing(schedules.disable), methods=["POST"]),
            Route("/schedules/{id}/delete", self._shown(schedules.ask_delete)),
            Route("/schedules/{id}/delete", self._changing(schedules.delete), methods=["POST"]),
            Route("/templates", self._shown(templates.templates)),
            Route("/templates/{topic}", self._shown(template.template)),
            Route("/templates/{topic}", self._changing(template.enqueue), methods=["POST"]),
            Route("/templates/{topic}/enable", self._changing(templates.enable), methods=["POST"]),
            Route("/templates/{topic}/disable", self._changing(templates.disable), methods=["POST"]),
            Route("/templates/{topic}/use/{version:int}", self._shown(templates.ask_use)),
            Route("/templates/{topic}/use/{version:int}", self._changing(templates.use), methods=["POST"]),
        ]

    def _webhooks(self) -> list[BaseRoute]:
        return [
            Route("/webhooks", self._shown(webhooks.webhooks)),
            Route("/new-webhook", self._shown(webhooks.new)),
            Route("/new-webhook", self._changing(webhooks.save), methods=["POST"]),
            Route("/webhooks/{id}/edit", self._shown(webhooks.edit)),
            Route("/webhooks/{id}/edit", self._changing(webhooks.save), methods=["POST"]),
            Route("/webhooks/{id}/enable", self._changing(webhooks.enable), methods=["POST"]),
            Route("/webhooks/{id}/disable", self._changing(webhooks.disable), methods=["POST"]),
            Route("/webhooks/{id}/test", self._changing(webhooks.test), methods=["POST"]),
            Route("/webhooks/{id}/rotate", self._shown(webhooks.ask_rotate)),
            Route("/webhooks/{id}/rotate", self._changing(webhooks.rotate), methods=["POST"]),
            Route("/webhooks/{id}/since", self._shown(webhooks.ask_since)),
            Route("/webhooks/{id}/since", self._changing(webhooks.since), methods=["POST"]),
            Route("/webhooks/{id}/delete", self._shown(webhooks.ask_delete)),
            Route("/webhooks/{id}/delete", self._changing(webhooks.delete), methods=["POST"]),
            Route("/webhooks/{id}/deliveries/{delivery:int}/body", self._shown(webhooks.body)),
            Route(
                "/webhooks/{id}/deliveries/{delivery:int}/redeliver",
                self._changing(webhooks.redeliver),
                methods=["POST"],
            ),
        ]

    def _running(self) -> list[BaseRoute]:
        """Workers and the server."""
        return [
            Route("/workers", self._shown(workers.workers)),
            Route("/workers/drain", self._shown(workers.ask_drain)),
            Route("/workers/drain", self._changing(workers.drain), methods=["POST"]),
            Route("/workers/undrain", self._shown(workers.ask_undrain)),
            Route("/workers/undrain", self._changing(workers.undrain), methods=["POST"]),
            Route("/system", self._shown(system.system)),
            Route("/system/audit.csv", self._shown(audit_export.export)),
            Route("/system/retention", self._shown(system.save_retention), methods=["POST"]),
            Route("/system/access", self._shown(system.save_access), methods=["POST"]),
            Route("/system/keys/new", self._shown(system.ask_key)),
            Route("/system/keys/new", self._changing(system.make_key), methods=["POST"]),
            Route("/system/keys/{id}/revoke", self._shown(system.ask_revoke_key)),
            Route("/system/keys/{id}/revoke", self._changing(system.revoke_key), methods=["POST"]),
            Route("/system/invite", self._shown(system.ask_invite)),
            Route("/system/invite", self._changing(system.invite), methods=["POST"]),
            Route("/system/superusers/{id}/revoke", self._shown(system.ask_revoke_sessions)),
            Route("/system/superusers/{id}/revoke", self._changing(system.revoke_sessions), methods=["POST"]),
        ]

    def begin(self, server: Server) -> None:
        """Called when the server is created: set up what its pages share."""
        state = self._states[server] = State(server)
        server.on_close += [state.checkup.close, state.scans.close]

    # -- around every page -------------------------------------------------------------------------

    async def _state(self) -> State:
        return self._states[await self._servers.get()]

    def _open(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Open to everyone; forms are accepted only from our pages."""

        async def endpoint(request: Request) -> Response:
            state = await self._state()
            if request.method == "POST":
                state.server.origin.require_same_origin(request)
            return await handler(Page(request, state, None))

        return endpoint

    def _shown(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """For signed-in superusers."""

        async def endpoint(request: Request) -> Response:
            return await handler(await self._page(request))

        return endpoint

    def _changing(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """The same, and refused if the dashboard is read-only."""

        async def endpoint(request: Request) -> Response:
            page = await self._page(request)
            if page.read_only:
                raise read_only_error()
            return await handler(page)

        return endpoint

    async def _page(self, request: Request) -> Page:
        state = await self._state()
        if request.method == "POST":
            state.server.origin.require_same_origin(request)
        try:
            caller = await state.server.access.caller(request)
        except ApiError as error:
            if error.status != 401:
                raise
            raise NeedsSignIn from None
        if not caller.is_superuser or caller.account_id is None:
            raise NeedsSignIn
        if caller.account is not None:
            state.server.accounts.last_seen.note_soon(caller.account_id)
        return Page(request, state, caller)

    # -- what went wrong ---------------------------------------------------------------------------

    async def _api_error(self, request: Request, error: Any) -> Response:
        found: ApiError = error
        return await self._problem(request, found.status, found.message)

    async def _treadle_error(self, request: Request, error: Any) -> Response:
        found = from_treadle(error)
        message = error.message if found.status == 404 else found.message
        return await self._problem(request, found.status, message)

    async def _http_error(self, request: Request, error: Any) -> Response:
        words = {404: "This page does not exist.", 405: "This address does not accept this method."}
        return await self._problem(request, error.status_code, words.get(error.status_code, str(error.detail)))

    async def _problem(self, request: Request, status: int, message: str) -> Response:
        headings = {403: "Not allowed", 404: "Not found", 409: "Not possible now", 503: "The database does not answer"}
        heading = headings.get(status, "That did not work")
        try:
            page = await self._page(request)
        except (NeedsSignIn, ApiError, TreadleError):
            return Response(f"{heading}: {message}\n", status, {"Cache-Control": "no-store"}, media_type="text/plain")
        if page.in_dialog:
            return await ask(
                page, Question(heading, "", "", page.url("/jobs"), "Close", lines=[message]), status=status
            )
        return await page.render("problem", status, title=heading, heading=heading, text=message)


async def _to_slash(request: Request) -> Response:
    return RedirectResponse(f"{base_of(request)}/_/", 307)


async def _to_sign_in(request: Request, error: Exception) -> Response:
    base = base_of(request)
    if request.url.path.endswith("/live"):
        return Response(status_code=401, headers={"Cache-Control": "no-store"})
    after = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = f"?next={quote(after, safe='')}" if request.method == "GET" and after != f"{base}/" else ""
    return RedirectResponse(f"{base}/login{query}", 303, {"Cache-Control": "no-store"})
