"""The doctor: what the store finds out about its database, and what only the queue knows."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
_SCOPE_ID = re.compile(r"\bscopeId\b")


async def examine(store: Store, own: Settings) -> list[Finding]:
    """Changes nothing. `own`: this process's settings."""
    found = await store.examine()
    settings = await RuntimeSettings(store, own).settings()
    return [
        *found,
        await _retention(store, settings, own.retention_interval_ms),
        await _retention_hooks(store),
        _access(settings.enqueue_rule),
        _versions(await store.workers()),
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
