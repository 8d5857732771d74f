"""The admin, the system checks and the command line."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.tasks import default_task_backend
from django.test import SimpleTestCase, override_settings
from django.urls import reverse
from django_checks import tasks
from django_checks.checks_tasks import Empty, run

from treadle.integrations.django.backend import TreadleBackend
from treadle.integrations.django.models import Job

CHANGELIST = "admin:treadle_job_changelist"


class Admin(Empty):
    def setUp(self) -> None:
        super().setUp()
        self.client.force_login(User.objects.create_superuser("root"))

    def test_jobs_are_listed_searched_and_shown(self) -> None:
        result = tasks.echo.enqueue()
        tasks.fails_for_good.enqueue()
        run()
        self.assertContains(self.client.get(reverse(CHANGELIST)), result.id)
        failed = self.client.get(reverse(CHANGELIST), {"status": "failed"})
        self.assertNotContains(failed, result.id)
        found = self.client.get(reverse(CHANGELIST), {"q": "tasks.echo"})
        self.assertContains(found, result.id)
        page = self.client.get(reverse("admin:treadle_job_change", args=[result.id]))
        self.assertContains(page, "django:django_checks.tasks.echo")

    def test_actions_requeue_and_cancel_and_tell_what_was_not_possible(self) -> None:
        failed, waiting = tasks.fails_for_good.enqueue(), tasks.echo.using(priority=-5).enqueue()
        default_task_backend.queue.sync.pause("django:django_checks.tasks.echo")
        run()
        told = self._act("requeue", failed.id, waiting.id)
        self.assertIn("1 job will run again.", told)
        failed.refresh()
        self.assertEqual(failed.status, "READY")
        told = self._act("cancel", waiting.id)
        self.assertIn("1 job cancelled", told)
        told = self._act("cancel", waiting.id)
        self.assertNotIn("1 job cancelled", told)
        default_task_backend.queue.sync.resume("django:django_checks.tasks.echo")

    def test_nobody_changes_a_job_without_the_permission(self) -> None:
        result = tasks.echo.enqueue()
        self.client.force_login(User.objects.create_user("ann", is_staff=True))
        self.assertEqual(self.client.get(reverse(CHANGELIST)).status_code, 403)
        self.client.post(reverse(CHANGELIST), {"action": "cancel", "_selected_action": [result.id]})
        result.refresh()
        self.assertEqual(result.status, "READY")

    def _act(self, action: str, *ids: str) -> str:
        data = {"action": action, "_selected_action": ids}
        return self.client.post(reverse(CHANGELIST), data, follow=True).content.decode()

    def test_the_model_reads_the_view(self) -> None:
        result = tasks.echo.enqueue()
        run()
        job = Job.objects.get(pk=result.id)
        self.assertEqual((job.topic, job.status, job.attempt), ("django:django_checks.tasks.echo", "completed", 1))
        self.assertLessEqual(job.created_at, job.ended_at)


class Checks(SimpleTestCase):
    databases = {"default", "other"}

    def ids(self, **params: Any) -> list[str | None]:
        return [message.id for message in TreadleBackend("checked", params).check()]

    def test_the_example_is_fine(self) -> None:
        self.assertEqual(list(default_task_backend.check()), [])

    def test_mistakes_are_told(self) -> None:
        self.assertEqual(self.ids(OPTIONS={"where": "x"}), ["treadle.E001"])
        self.assertEqual(self.ids(OPTIONS={"database": "nowhere"}), ["treadle.E002"])
        self.assertEqual(self.ids(OPTIONS={"database": "memory"}), ["treadle.E003", "treadle.W001"])
        self.assertEqual(self.ids(QUEUES=[" media"]), ["treadle.E005"])
        with override_settings(INSTALLED_APPS=["django.contrib.contenttypes"]):
            self.assertEqual(self.ids(), ["treadle.E004"])


class Commands(Empty):
    def call(self, *words: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            call_command("treadle", *words)
        return out.getvalue() + err.getvalue()

    def test_the_command_line_is_on_the_projects_database(self) -> None:
        result = tasks.echo.enqueue()
        self.assertIn(result.id, self.call("jobs", "list"))
        self.assertIn("pending", self.call("jobs", "show", result.id))
