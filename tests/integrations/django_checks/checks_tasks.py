"""`django.tasks` on Treadle, with Django's own test runner."""

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections, transaction
from django.tasks import TaskResultStatus, default_task_backend, task, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import TestCase, TransactionTestCase, override_settings
from django_checks import tasks
from shop.models import Order

import treadle
from treadle import ConcurrencyRejected
from treadle.integrations.django import JobCancelled, JobExpired, TreadleBackend, TreadleTask
from treadle.integrations.django.models import Job


def run() -> None:
    default_task_backend.queue.sync.run_until_empty()


class Empty(TransactionTestCase):
    def setUp(self) -> None:
        queue = default_task_backend.queue.sync
        for job in queue.list(limit=1000):
            if not job.ended:
                queue.cancel(job.id)
        queue.delete_many([job.id for job in queue.list(limit=1000)], force=True)
        tasks.ran.clear()


class Running(Empty):
    def test_a_task_runs_with_its_arguments_and_its_value_is_kept(self) -> None:
        result = tasks.echo.enqueue(1, "two", three=[3])
        self.assertEqual((result.status, result.args, result.kwargs), ("READY", [1, "two"], {"three": [3]}))
        self.assertEqual((result.attempts, result.errors, result.backend), (0, [], "default"))
        run()
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.SUCCESSFUL)
        self.assertEqual(result.return_value, {"args": [1, "two"], "kwargs": {"three": [3]}})
        self.assertEqual(result.attempts, 1)
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertEqual(result.last_attempted_at, result.started_at)

    def test_a_coroutine_runs_too_and_the_async_twins_work(self) -> None:
        async def enqueue() -> Any:
            result = await tasks.echo_later.aenqueue("ä")
            await default_task_backend.queue.run_until_empty()
            await default_task_backend.queue.close()
            return await tasks.echo_later.aget_result(result.id)

        self.assertEqual(async_to_sync(enqueue)().return_value, "ä")

    def test_a_failed_attempt_is_retried_and_its_error_kept(self) -> None:
        result = tasks.second_time.enqueue()
        self._until_ended(result)
        self.assertEqual((result.return_value, result.attempts), ([2, 1], 2))
        [error] = result.errors
        self.assertIs(error.exception_class, ConnectionError)
        self.assertIn("the first time", error.traceback)
        self.assertLess(result.started_at, result.last_attempted_at)

    def _until_ended(self, result: Any) -> None:
        """Retries are due after some milliseconds; a worker waits for them."""
        while not result.is_finished:
            run()
            result.refresh()

    def test_the_context_of_a_coroutine(self) -> None:
        result = tasks.context_later.enqueue()
        run()
        result.refresh()
        self.assertEqual(result.return_value, result.id)

    def test_a_task_that_fails_has_the_error_of_every_attempt(self) -> None:
        result = tasks.fails.enqueue()
        self._until_ended(result)
        self.assertEqual((result.status, result.attempts), ("FAILED", 2))
        self.assertEqual([error.exception_class for error in result.errors], [tasks.OwnError] * 2)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value

    def test_errors_of_treadle_and_of_results_can_be_imported(self) -> None:
        final, unfit = tasks.fails_for_good.enqueue(), tasks.not_json.enqueue()
        run()
        final.refresh()
        self.assertEqual([error.exception_class for error in final.errors], [treadle.Fail])
        unfit.refresh()
        self.assertEqual(unfit.errors[0].exception_class, TypeError)

    def test_a_cancelled_and_an_expired_task_have_failed(self) -> None:
        queue = default_task_backend.queue.sync
        cancelled = tasks.echo.enqueue()
        queue.cancel(cancelled.id, "not needed")
        cancelled.refresh()
        self.assertEqual(cancelled.status, "FAILED")
        self.assertEqual([error.exception_class for error in cancelled.errors], [JobCancelled])
        self.assertEqual(cancelled.errors[0].traceback, "not needed")
        late = queue.enqueue("django:django_checks.tasks.echo", {"args": [], "kwargs": {}}, expires="1ms")
        while not queue.get(late.id).ended:
            run()
        expired = default_task_backend.get_result(late.id)
        self.assertEqual([error.exception_class for error in expired.errors], [JobExpired])

    def test_signals_tell_what_happens(self) -> None:
        told: list[Any] = []

        def enqueued(task_result: Any, **_: Any) -> None:
            told.append(("enqueued", task_result.status))

        def started(task_result: Any, **_: Any) -> None:
            told.append(("started", task_result.status))

        def finished(task_result: Any, **_: Any) -> None:
            told.append(("finished", task_result.status))

        task_enqueued.connect(enqueued, sender=TreadleBackend)
        task_started.connect(started, sender=TreadleBackend)
        task_finished.connect(finished, sender=TreadleBackend)
        tasks.echo.enqueue()
        run()
        result = tasks.fails_for_good.enqueue()
        run()
        expected = [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]
        self.assertEqual(told, [*expected, *expected[:2], ("finished", "FAILED")])
        result.refresh()

    def test_connections_are_closed_after_a_task_in_a_thread(self) -> None:
        with override_settings():
            connections.settings["default"]["CONN_MAX_AGE"] = 0
            result = tasks.reads_the_database.enqueue()
            run()
            result.refresh()
            self.assertEqual(result.return_value, 0)


class Options(Empty):
    def test_priorities_are_kept_and_nothing_is_ours_normal(self) -> None:
        queue = default_task_backend.queue.sync
        for given, ours in ((-100, -50), (0, 50), (100, 150)):
            result = tasks.echo.using(priority=given).enqueue()
            self.assertEqual(queue.get(result.id).priority, ours)
            self.assertEqual(default_task_backend.get_result(result.id).task.priority, given)

    def test_run_after_and_queue_name_are_kept(self) -> None:
        when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        result = default_task_backend.get_result(tasks.media.using(run_after=when).enqueue().id)
        self.assertEqual((result.task.run_after, result.task.queue_name, result.task.priority), (when, "media", 20))
        job = default_task_backend.queue.sync.get(result.id)
        self.assertEqual((job.run_at, job.capability), (when, "media"))
        run()
        result.refresh()
        self.assertEqual(result.status, "READY")

    def test_options_of_treadle_in_the_decorator(self) -> None:
        self.assertEqual(tasks.once.enqueue(key="a").id, tasks.once.enqueue(key="a").id)
        tasks.alone.enqueue(customer="ada")
        with self.assertRaises(ConcurrencyRejected):
            tasks.alone.enqueue(customer="ada")
        tasks.alone.enqueue(customer="bob")
        template = default_task_backend.queue.sync.template("django:django_checks.tasks.fails")
        self.assertEqual(template.retry.max_attempts, 2)

    def test_an_option_that_is_wrong_is_an_invalid_task(self) -> None:
        with self.assertRaises(TypeError):
            task(retires=3)(_module_level)
        default_task_backend.queue  # noqa: B018 - made, so that tasks are registered right away
        with self.assertRaisesMessage(InvalidTask, "timeout"):
            task(timeout="soon")(_module_level)
        with self.assertRaisesMessage(InvalidTask, "priority"):
            task(priority=101)(_module_level)
        with self.assertRaises(InvalidTask):
            tasks.echo.using(queue_name="unknown")

    def test_arguments_that_are_no_json_are_refused(self) -> None:
        with self.assertRaises(TypeError):
            tasks.echo.enqueue(object())
        with self.assertRaisesMessage(InvalidTask, "1,048,576"):
            tasks.echo.enqueue("x" * 1_100_000)
        self.assertEqual(default_task_backend.queue.sync.count(), 0)

    def test_a_task_can_be_pickled(self) -> None:
        copy = pickle.loads(pickle.dumps(tasks.fails))
        self.assertIsInstance(copy, TreadleTask)
        self.assertEqual(copy.retry, tasks.fails.retry)

    def test_results_of_others_are_told_apart(self) -> None:
        result = tasks.echo.enqueue()
        with self.assertRaises(TaskResultMismatch):
            tasks.fails.get_result(result.id)
        for id in ("01890000-0000-7000-8000-000000000000", "nonsense", "'; DROP TABLE x"):
            with self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(id)
        other = default_task_backend.queue.sync.enqueue("mail")
        with self.assertRaisesMessage(TaskResultDoesNotExist, "no task of this project"):
            default_task_backend.get_result(other.id)

    def test_the_backend_says_what_it_can(self) -> None:
        backend = task_backends["default"]
        flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
        self.assertTrue(all(getattr(backend, flag) for flag in flags))


def _module_level() -> None: ...


class Transactions(Empty):
    def test_a_rollback_takes_the_task_along(self) -> None:
        with self.assertRaises(RuntimeError), transaction.atomic():
            Order.objects.create(customer="ada")
            result = tasks.echo.enqueue()
            self.assertEqual(default_task_backend.get_result(result.id).status, "READY")
            raise RuntimeError
        with self.assertRaises(TaskResultDoesNotExist):
            default_task_backend.get_result(result.id)
        self.assertEqual(Order.objects.count(), 0)

    def test_a_commit_keeps_it(self) -> None:
        with transaction.atomic():
            result = tasks.echo.enqueue()
            with self.assertRaises(RuntimeError), transaction.atomic():
                tasks.echo.enqueue()
                raise RuntimeError
        self.assertEqual([job.id for job in default_task_backend.queue.sync.list()], [result.id])
        run()
        result.refresh()
        self.assertEqual(result.status, "SUCCESSFUL")

    def test_a_refused_task_leaves_the_transaction_as_it_was(self) -> None:
        tasks.alone.enqueue(customer="ada")
        with transaction.atomic():
            Order.objects.create(customer="ada")
            with self.assertRaises(ConcurrencyRejected):
                tasks.alone.enqueue(customer="ada")
        self.assertEqual(Order.objects.count(), 1)

    def test_without_autocommit_it_is_the_users_transaction(self) -> None:
        transaction.set_autocommit(False)
        try:
            tasks.echo.enqueue()
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        self.assertEqual(default_task_backend.queue.sync.count(), 0)


class InTestCase(TestCase):
    """Each test is a transaction that is rolled back."""

    def test_a_task_can_be_enqueued_and_seen(self) -> None:
        Order.objects.create(customer="ada")
        result = tasks.echo.enqueue(7)
        result.refresh()
        self.assertEqual((result.status, result.args), ("READY", [7]))
        self.assertTrue(connection.in_atomic_block)

    def test_and_is_gone_in_the_next(self) -> None:
        self.assertEqual(Job.objects.filter(topic="django:django_checks.tasks.echo").count(), 0)


class OtherDatabases(Empty):
    databases = {"default", "other"}

    def test_a_transaction_on_another_database_alone_cannot_be_joined(self) -> None:
        with self.assertRaisesMessage(ImproperlyConfigured, "'other'"), transaction.atomic(using="other"):
            tasks.echo.enqueue()
        with transaction.atomic(using="other"), transaction.atomic():
            tasks.echo.enqueue()
        self.assertEqual(default_task_backend.queue.sync.count(), 1)
