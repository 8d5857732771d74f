"""Tasks for the checks; imported by them, not by the project."""

from typing import Any

from django.tasks import task

from treadle import Concurrency, Fail, Retry, Snooze

ran: list[Any] = []


@task
def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    ran.append((args, kwargs))
    return {"args": list(args), "kwargs": kwargs}


@task
async def echo_later(text: str) -> str:
    return text


@task(takes_context=True, retry=Retry(3, backoff="fixed", delay="10ms"))
def second_time(context: Any) -> list[int]:
    if context.attempt == 1:
        raise ConnectionError("the first time")
    return [context.attempt, len(context.task_result.errors)]


@task(takes_context=True)
async def context_later(context: Any) -> str:
    return str(context.task_result.id)


class OwnError(Exception):
    pass


@task(retry=Retry(2, backoff="fixed", delay="10ms"))
def fails() -> None:
    raise OwnError("always")


@task
def fails_for_good() -> None:
    raise Fail("no more")


@task
def not_json() -> object:
    return object()


@task
def snoozes() -> None:
    raise Snooze("1h")


@task(queue_name="media", priority=20)
def media() -> None: ...


@task(idempotency_key="input.kwargs.key")
def once(key: str) -> str:
    return key


@task(concurrency=Concurrency(policy="reject_same_scope", keys=["input.kwargs.customer"]))
def alone(customer: str) -> None: ...


@task
def reads_the_database() -> int:
    from shop.models import Order

    return Order.objects.count()
