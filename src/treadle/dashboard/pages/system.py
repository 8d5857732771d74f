"""The system: doctor, leader, retention, access rules, API keys, users, audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from treadle.accounts import SUPERUSERS, USERS, Account, AccountNotFound
from treadle.accounts.account import SCOPES
from treadle.dashboard import leader_rows, words
from treadle.dashboard.asking import Field, Question
from treadle.dashboard.asking import ask as ask_page
from treadle.dashboard.audit_rows import audit_rows
from treadle.dashboard.forms import page_number, problem_of, time_of
from treadle.dashboard.page import Page, read_only_error
from treadle.dashboard.retention_form import RetentionForm, effect_words, saved_retention, sent_retention
from treadle.dashboard.rule_trial import Trial, Verdict, verdict
from treadle.dashboard.settings_forms import SeenSettings, seen_by, seen_now
from treadle.http.access import PUBLIC, parsed
from treadle.http.errors import ApiError
from treadle.model.errors import InvalidInput, VersionConflict
from treadle.model.job import checked_topic
from treadle.policy.rules import InvalidRule
from treadle.queue.doctor import lets_any_scope
from treadle.store.views import Finding

AUDITED = 100
MOST_AUDITED = 5000
CHANGED = (
    "the settings were changed after you opened this page. Your input is kept; saving again overwrites the change."
)
LISTED_USERS = 1000
FOUND_USERS = 20
RULES = ("enqueue_rule", "manage_rule")


@dataclass(slots=True)
class AccessForm:
    enqueue_rule: str
    manage_rule: str
    http_enabled: bool
    allowed_topics: str
    may: str = "manage"
    on: str = ""
    draft: bool = False
    problem: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    as_: str = ""
    seen: SeenSettings | None = None

    def shown(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        reads = {name: _reads(getattr(self, name)) for name in RULES if self.draft and name not in self.problems}
        return {**fields, "as": self.as_, "any_scope": lets_any_scope(self.enqueue_rule), "reads": reads}


def _reads(text: str) -> str:
    """What a rule without a mistake means for lists; empty for the words that are no rule."""
    rule = None if text == PUBLIC else parsed(text)
    if rule is None:
        return ""
    if rule.names_job_fields:
        return "Reads well. It names job fields: each job is decided on its own."
    return "Reads well. It names no job field: it holds for all jobs or for none."


async def system(page: Page) -> Response:
    return await _show(page)


async def _show(
    page: Page,
    *,
    access: AccessForm | None = None,
    retention: RetentionForm | None = None,
    new_secret: dict[str, str] | None = None,
    invitation: str = "",
    changed: Sequence[str] = (),
    status: int = 200,
) -> Response:
    state = page.state
    accounts = state.server.accounts
    settings = await state.server.site.settings()
    await state.checkup.look(anew=page.query("check") == "1")
    findings = state.checkup.findings
    users = await accounts.list(USERS, LISTED_USERS)
    wrong = [one for one in findings or () if one.level != "ok"]
    return await page.render(
        "system",
        status,
        section="System",
        title="System",
        note=_note(findings, wrong),
        checked_at=state.checkup.at,
        findings=wrong,
        passed=[one for one in findings or () if one.level == "ok"],
        leaders=await leader_rows.leaders(state.queue, (await state.now.get()).leaders),
        migrations=await leader_rows.migrations(state.insights),
        retention=retention or saved_retention(settings),
        changed=changed,
        access=(access or await _saved_access(page)).shown(),
        keys=await accounts.api_keys.list(),
        new_secret=new_secret,
        superusers=await accounts.list(SUPERUSERS),
        last_seen=await accounts.last_seen.all(),
        me=page.caller.account_id if page.caller else "",
        invitation=invitation,
        users_words=_users_words(len(users), sum(user.verified for user in users)),
        any_users=bool(users),
        user_words=page.query("user").strip()[:200],
        found_users=await _found_users(page, users),
        **await _audit(page),
    )


async def _audit(page: Page) -> dict[str, Any]:
    """A hundred entries of the log, and the addresses of the ones before and after them."""
    text, who = page.query("audit")[:200], page.query("who")[:200]
    number = page_number(page.query("page"), MOST_AUDITED // AUDITED)
    start = (number - 1) * AUDITED
    found = await page.state.audit.search(text, start + AUDITED + 1, who=who)

    def url(number: int) -> str:
        return page.url("/system", audit=text, who=who, page=number if number > 1 else "") + "#audit"

    return {
        "audit": audit_rows(found[start : start + AUDITED]),
        "audit_words": text,
        "audit_who": who,
        "export_url": page.url("/system/audit.csv", audit=text, who=who),
        "newer_url": url(number - 1) if number > 1 else "",
        "older_url": url(number + 1) if len(found) > start + AUDITED and start + AUDITED < MOST_AUDITED else "",
    }


def _note(findings: Sequence[Finding] | None, wrong: Sequence[Finding]) -> str:
    if findings is None:
        return "checking"
    return words.plural(len(wrong), "warning") if wrong else "everything is fine"


async def _found_users(page: Page, users: Sequence[Account]) -> list[Account]:
    """Users with this text in their address or id; beyond the listed ones, the one with exactly this."""
    text = page.query("user").strip()[:200]
    found = [one for one in users if text and text.lower() in f"{one.email} {one.id}".lower()]
    if text.isprintable() and text and not found:
        try:
            found = [await page.state.server.accounts.get(USERS, text)]
        except AccountNotFound:
            pass
    return found[:FOUND_USERS]


def _users_words(count: int, verified: int) -> str:
    if not count:
        return "No users of the API"
    return (
        f"{words.plural(count, 'user')} of the API, {verified:,} verified"
        if count < LISTED_USERS
        else "1,000 users or more"
    )


# -- retention -------------------------------------------------------------------------------------


async def save_retention(page: Page) -> Response:
    """Save the ages, or count what they would do; a read-only dashboard can still count."""
    form, site = await sent_retention(page), page.state.server.site
    try:
        changes = form.changes(await site.settings())
        if await page.field("try"):
            form.effect = await effect_words(page, changes)
            return await _show(page, retention=form)
        if page.read_only:
            raise read_only_error()
        await site.change(changes, form.seen.number)
    except InvalidInput as error:
        form.problem = error.message
        return await _show(page, retention=form, status=400)
    except VersionConflict:
        now, seen = await site.settings(), form.seen
        form.problem, form.seen = CHANGED, seen_now(now)
        return await _show(page, retention=form, changed=seen.changes(now), status=409)
    await page.state.audit.add(page.actor, "settings", "retention", filter=form.told())
    return page.redirect(page.url("/system") + "#retention", "Retention saved.")


# -- access ----------------------------------------------------------------------------------------


async def _saved_access(page: Page) -> AccessForm:
    settings = await page.state.server.site.settings()
    topics = " ".join(settings.allowed_topics)
    form = AccessForm(settings.enqueue_rule, settings.manage_rule, settings.http_enabled, topics)
    form.seen = seen_now(settings)
    return form


async def save_access(page: Page) -> Response:
    """Try a draft or save it; a read-only dashboard can still try it."""
    form = AccessForm(
        await page.field("enqueue_rule"),
        await page.field("manage_rule"),
        bool(await page.field("http_enabled")),
        await page.field("allowed_topics"),
        "enqueue" if await page.field("may") == "enqueue" else "manage",
        await page.field("on"),
        draft=True,
    )
    form.as_, form.seen = await page.field("as"), await seen_by(page)
    form.problems = _rule_problems(form)
    if form.problems:
        form.problem = "a rule or a topic can't be read; nothing was stored."
        return await _show(page, access=form, status=400)
    if await page.field("try"):
        form.verdict = await _verdict(page, form)
        return await _show(page, access=form)
    if page.read_only:
        raise read_only_error()
    changes = {
        "enqueue_rule": form.enqueue_rule,
        "manage_rule": form.manage_rule,
        "http_enabled": form.http_enabled,
        "allowed_topics": form.allowed_topics.split(),
    }
    try:
        await page.state.server.site.change(changes, form.seen.number)
    except VersionConflict:
        now, seen = await page.state.server.site.settings(), form.seen
        form.problem, form.seen = CHANGED, seen_now(now)
        return await _show(page, access=form, changed=seen.changes(now), status=409)
    told = f"enqueue: {form.enqueue_rule or 'superusers'}; manage: {form.manage_rule or 'superusers'}"
    await page.state.audit.add(page.actor, "settings", "access", filter=told)
    return page.redirect(page.url("/system") + "#access", "Access rules saved.")


def _rule_problems(form: AccessForm) -> dict[str, str]:
    problems = {}
    for name, text in (("enqueue_rule", form.enqueue_rule), ("manage_rule", form.manage_rule)):
        try:
            parsed(text)
        except InvalidRule as error:
            problems[name] = error.message
    try:
        for topic in form.allowed_topics.split():
            checked_topic(topic)
    except InvalidInput as error:
        problems["allowed_topics"] = error.message
    return problems


async def _verdict(page: Page, form: AccessForm) -> Verdict:
    saved = await _saved_access(page)
    draft, in_force = (
        (form.manage_rule, saved.manage_rule) if form.may == "manage" else (form.enqueue_rule, saved.enqueue_rule)
    )
    return await verdict(
        page.state.server.accounts, page.state.queue, Trial(form.as_, form.may, form.on), draft, in_force
    )


# -- API keys --------------------------------------------------------------------------------------


async def ask_key(page: Page) -> Response:
    return await ask_page(page, _key_question(page), section="System")


def _key_question(page: Page, given: dict[str, str] | None = None, problems: dict[str, str] | None = None) -> Question:
    values = given or {"name": "", "scopes": "enqueue", "expires_at": ""}
    return Question(
        "New API key",
        page.url("/system/keys/new"),
        "Make the key",
        page.url("/system") + "#keys",
        "Back",
        fields=[
            Field("name", "Name", values["name"], "what uses it, such as ci", pattern=".+"),
            Field("scopes", "May", values["scopes"], "one or more of " + " ".join(sorted(SCOPES))),
            Field("expires_at", "Expires", values["expires_at"], "a delay such as 90d, or a time", optional=True),
        ],
        after="The key is shown once, on the next page.",
        problems=problems or {},
    )


async def make_key(page: Page) -> Response:
    given = {name: await page.field(name) for name in ("name", "scopes", "expires_at")}
    try:
        expires = time_of(given["expires_at"], page.now, "expires_at") if given["expires_at"] else None
        scopes = given["scopes"].replace(",", " ").split()
        key, secret = await page.state.server.accounts.api_keys.create(
            given["name"], scopes, expires, created_by=page.actor.name
        )
    except InvalidInput as error:
        problems = {"expires_at" if name == "expiresAt" else name: text for name, text in problem_of(error).items()}
        return await ask_page(page, _key_question(page, given, problems), section="System", status=400)
    await page.state.audit.add(page.actor, "api_key", key.name)
    # Not a redirect, because the secret would have to be stored until the next request.
    return await _show(page, new_secret={"name": key.name, "secret": secret})


async def ask_revoke_key(page: Page) -> Response:
    id = page.request.path_params["id"]
    key = next((one for one in await page.state.server.accounts.api_keys.list() if one.id == id), None)
    name = key.name if key else "this key"
    question = Question(
        f"Revoke {name}?",
        page.url(f"/system/keys/{id}/revoke"),
        "Revoke",
        page.url("/system") + "#keys",
        "Keep it",
        danger=True,
        lines=["It stops working immediately. A revoked key can't be restored."],
        hidden=[("name", name)],
    )
    return await ask_page(page, question, section="System")


async def revoke_key(page: Page) -> Response:
    await page.state.server.accounts.api_keys.revoke(page.request.path_params["id"])
    await page.state.audit.add(page.actor, "revoke_api_key", await page.field("name"))
    return page.redirect(page.url("/system") + "#keys", "Key revoked.")


# -- superusers --------------------------------------------------------------------------------------


async def ask_invite(page: Page) -> Response:
    question = Question(
        "Invite a superuser?",
        page.url("/system/invite"),
        "Make the link",
        page.url("/system") + "#users",
        "Back",
        lines=["A superuser may do everything, here and over the API. The link works once, for a day."],
        after="The link is shown once, on the next page. Nothing is sent: pass it on yourself.",
    )
    return await ask_page(page, question, section="System")


async def invite(page: Page) -> Response:
    assert page.caller is not None
    if page.caller.account is None:
        raise ApiError(403, "forbidden", "Only a superuser with an account here can invite others.")
    token = await page.state.server.accounts.invite(page.caller.account)
    await page.state.audit.add(page.actor, "invite")
    # Not a redirect, because the link would have to be stored until the next request.
    return await _show(page, invitation=f"{page.address}/invitation#token={token}")


async def ask_revoke_sessions(page: Page) -> Response:
    account = await page.state.server.accounts.get(SUPERUSERS, page.request.path_params["id"])
    question = Question(
        f"Sign {account.email} out everywhere?",
        page.url(f"/system/superusers/{account.id}/revoke"),
        "Sign out everywhere",
        page.url("/system") + "#users",
        danger=True,
        lines=["Every session and token of this account ends; its password stays."],
    )
    return await ask_page(page, question, section="System")


async def revoke_sessions(page: Page) -> Response:
    account = await page.state.server.accounts.revoke_tokens(SUPERUSERS, page.request.path_params["id"])
    await page.state.audit.add(page.actor, "revoke_sessions", account.email)
    return page.redirect(page.url("/system") + "#users", f"{account.email} is signed out everywhere.")
