"""Jobs, to read: a model over the view `job_list`."""

from __future__ import annotations

from typing import Any

from django.db import connections, models
from django.tasks import task_backends

from treadle.integrations.django.backend import TreadleBackend


def _backend() -> TreadleBackend | None:
    return next((one for one in task_backends.all() if isinstance(one, TreadleBackend)), None)


_DATABASE = backend.database if (backend := _backend()) else "default"
_POSTGRES = connections[_DATABASE].vendor == "postgresql"


class JobManager(models.Manager):
    """Reads from the queue's database, also where a router sends the app elsewhere."""

    def get_queryset(self) -> Any:
        return super().get_queryset().using(_DATABASE)


class Job(models.Model):
    id = models.UUIDField(primary_key=True) if _POSTGRES else models.CharField(primary_key=True, max_length=36)
    topic = models.CharField(max_length=255)
    status = models.CharField(max_length=20)
    attempt = models.IntegerField()
    max_attempts = models.IntegerField()
    created_at = models.DateTimeField()
    run_at = models.DateTimeField()
    claimed_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    error = models.TextField(null=True)

    objects = JobManager()

    class Meta:
        managed = False
        db_table = 'treadle"."job_list' if _POSTGRES else "treadle_job_list"
        ordering = ("-id",)
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"
