"""What `treadle worker treadle.integrations.django.app:queue` runs: every task of the project.

`queue` is that of the backend `default`, or of the first one of Treadle's; another is named by its alias.
"""

from __future__ import annotations

from typing import Any

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from django.utils.module_loading import autodiscover_modules

from treadle.integrations.django.backend import TreadleBackend

if not apps.ready:
    django.setup()
autodiscover_modules("tasks")

backends = {one.alias: one for one in task_backends.all() if isinstance(one, TreadleBackend)}
for one in backends.values():
    for module in one.options.get("include", ()):
        __import__(module)


def chosen() -> TreadleBackend:
    if not backends:
        raise ImproperlyConfigured("TASKS has no treadle.integrations.django.TreadleBackend")
    return backends.get(DEFAULT_TASK_BACKEND_ALIAS) or next(iter(backends.values()))


queue = chosen().queue


def __getattr__(name: str) -> Any:
    if name in backends:
        return backends[name].queue
    raise AttributeError(f"TASKS has no backend {name!r} of Treadle's")
