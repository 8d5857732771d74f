"""Treadle as a backend of `django.tasks`, with a management command, an admin and checks.

INSTALLED_APPS = [..., "treadle.integrations.django"]
TASKS = {"default": {"BACKEND": "treadle.integrations.django.TreadleBackend"}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle import InvalidInput, JobCancelled

try:
    import django
except ModuleNotFoundError:
    raise InvalidInput("treadle.integrations.django needs Django 6: pip install 'treadle[django]'") from None
if django.VERSION < (6, 0):
    raise InvalidInput(
        f"treadle.integrations.django needs Django 6.0 and Python 3.12, and this is Django {django.get_version()}"
    )

if TYPE_CHECKING:
    from treadle.integrations.django.backend import TreadleBackend
    from treadle.integrations.django.task import TreadleTask


class JobExpired(Exception):
    """In `TaskResult.errors`: the task was not started before its deadline, or its worker was lost."""


def __getattr__(name: str) -> Any:
    """The backend imports `django.tasks`, which an installed app must not do before the settings are read."""
    if name == "TreadleBackend":
        from treadle.integrations.django.backend import TreadleBackend

        return TreadleBackend
    if name == "TreadleTask":
        from treadle.integrations.django.task import TreadleTask

        return TreadleTask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["JobCancelled", "JobExpired", "TreadleBackend", "TreadleTask"]
