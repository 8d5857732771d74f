"""Jobs in the admin: to look at, to requeue and to cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.tasks import task_backends

from treadle import TreadleError
from treadle.integrations.django.backend import TreadleBackend
from treadle.integrations.django.models import Job


def _queue() -> Any:
    return next(one.queue for one in task_backends.all() if isinstance(one, TreadleBackend)).sync


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    list_display = ("id", "topic", "status", "attempt", "created_at", "ended_at")
    list_filter = ("status",)
    search_fields = ("=id", "topic")
    list_per_page = 50
    show_full_result_count = False
    actions: ClassVar = ["requeue", "cancel"]

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        return [field.name for field in Job._meta.fields]

    @admin.action(description="Run the selected jobs again", permissions=["change"])
    def requeue(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, _queue().requeue, "will run again")

    @admin.action(description="Cancel the selected jobs", permissions=["change"])
    def cancel(self, request: Any, queryset: Any) -> None:
        self._each(request, queryset, _queue().cancel, "cancelled, or asked to stop")

    def _each(self, request: Any, queryset: Any, change: Callable[[str], object], told: str) -> None:
        """Job by job, so that one in a wrong state does not keep the others from it."""
        done = 0
        for job in queryset:
            try:
                change(str(job.id))
                done += 1
            except TreadleError as error:
                self.message_user(request, str(error), messages.WARNING)
        if done:
            self.message_user(request, f"{done} {'job' if done == 1 else 'jobs'} {told}.", messages.SUCCESS)
