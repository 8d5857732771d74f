"""Tasks with `process=True`: their process looks for the handler here, and Django has to be set up first."""

from __future__ import annotations

from typing import Any

import django
from django.apps import apps
from django.utils.module_loading import import_string


def __getattr__(name: str) -> Any:
    """The task `shop/tasks/resize` is `shop.tasks.resize`."""
    if "/" not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not apps.ready:
        django.setup()
    return import_string(name.replace("/", "."))
