"""The doctor: what the store finds out about its database, and what only the queue knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from treadle.accounts import signing_keys
from treadle.model.durations import format_ms
from treadle.model.settings import Settings
from treadle.policy.retention import classes
from treadle.queue.handlers.retention_hooks import registered
from treadle.queue.runtime_settings import RuntimeSettings, StoredSettings
from treadle.store.protocol import Store
from treadle.store.views import Finding, LiveWorker

EVERYBODY = "true"
COUNTED = 10_000
# A pass may be a little late, or take a while.
LATE_MS = 600_000
ROTATE = "run treadle rotate-key; everybody has to sign in again"
MOVES = "a server moves it to a file beside it when somebody signs in"
_SCOPE_ID = re.compile(r"\bscopeId\b")


async def examine(store: Store, own: Settings, key_file: Path | None = None) -> list[Finding]:
    """Changes nothing. `own`: this process's settings. `key_file`: where a server keeps its signing key."""
    found = await store.examine()
    settings = await RuntimeSettings(store, own).settings()
    return [
        *found,
        await _retention(store, settings, own.retention_interval_ms),
        await _retention_hooks(store),
        _access(settings.enqueue_rule),
        _versions(await store.workers()),
        await _signing_key(store, own, key_file),
    ]


async def _retention(store: Store, settings: StoredSettings, interval_ms: int) -> Finding:
    late_ms, left = 2 * interval_ms + LATE_MS, 0
    kept = classes(settings.retention)
    for one in kept:
        left += await store.count_old(one, one.kept_ms + late_ms, COUNTED + 1)
    kept_ms = max(one.kept_ms for one in kept)
    if not left:
        return Finding("retention", "ok", f"no ended job is kept longer than {format_ms(kept_ms)}")
    count = f"{COUNTED:,}+" if left > COUNTED else f"{left:,}"
    return Finding(
        "retention",
        "warn",
        f"retention is behind: {count} jobs should have been deleted more than {format_ms(late_ms)} ago",
        "a worker or a server has to run to delete them; the log of the leader says what keeps it from doing so",
    )


async def _retention_hooks(store: Store) -> Finding:
    """Jobs of topics with a hook stay until a process that has it runs."""
    known = sorted((await registered(store)).all)
    present = {one.name for one in await store.leaders()}
    missing = [one for one in known if one.office not in present]
    if not missing:
        return Finding("retention hooks", "ok", f"{len(known)} hooks, all in a running process" if known else "none")
    names = ", ".join(str(one) for one in missing[:3]) + (" and others" if len(missing) > 3 else "")
    return Finding(
        "retention hooks",
        "warn",
        f"no running process has the retention hook {names}: its jobs are not marked or deleted",
        f"start a worker of the program that has it, or run treadle retention forget-hook {missing[0].id}",
    )


def lets_any_scope(enqueue_rule: str) -> bool:
    """Whether users whom the rule lets in can enqueue a job in the name of others."""
    return bool(enqueue_rule) and not _SCOPE_ID.search(enqueue_rule)


def _access(enqueue_rule: str) -> Finding:
    if not lets_any_scope(enqueue_rule):
        return Finding("access", "ok", "no rule lets users choose any scope")
    who = "everybody, without signing in," if enqueue_rule == EVERYBODY else "users"
    return Finding(
        "access",
        "warn",
        f"enqueue_rule names no scopeId: {who} can enqueue jobs in the name of others",
        "add scopeId = @request.auth.id, unless scopes mean nothing to your handlers",
    )


def _versions(workers: Sequence[LiveWorker]) -> Finding:
    versions = sorted({one.version for one in workers if one.version})
    if len(versions) < 2:
        return Finding("versions", "ok", f"all workers run {versions[0]}" if versions else "no worker is connected")
    return Finding(
        "versions",
        "warn",
        f"{len(versions)} versions of Treadle run side by side: {', '.join(versions)}",
        "fine during a deploy; afterwards restart the workers with the older one",
    )


async def _signing_key(store: Store, own: Settings, file: Path | None) -> Finding:
    """Whoever has the key can make tokens for every account."""
    (stored,) = await store.get_records([signing_keys.NAME])
    return _of_key(stored is not None, own, file)


def _of_key(stored: bool, own: Settings, file: Path | None) -> Finding:
    in_file = file is not None and file.exists()
    if own.secret_key and (stored or in_file):
        return _key("warn", "TREADLE_SECRET_KEY signs tokens, and the key before it is still accepted", ROTATE)
    if own.secret_key:
        return _key("ok", "TREADLE_SECRET_KEY signs tokens")
    if stored and file is None:
        advice = "set TREADLE_SECRET_KEY to the same random text for all servers, then run treadle rotate-key"
        return _key("warn", "the key that signs tokens is in the database, and so in its backups", advice)
    if stored:
        return _key(
            "warn", "the key that signs tokens is in the database file", f"{MOVES}; then run treadle rotate-key"
        )
    if file is None or not in_file:
        return _key("ok", "the key that signs tokens is made when somebody signs in")
    if file.stat().st_mode & 0o077:
        return _key("warn", f"others can read {file.name}, the key that signs tokens", f"chmod 600 {file}; {ROTATE}")
    return _key("ok", f"tokens are signed with {file.name}, which only its owner can read")


def _key(level: Literal["ok", "warn"], message: str, advice: str = "") -> Finding:
    return Finding("signing key", level, message, advice)
