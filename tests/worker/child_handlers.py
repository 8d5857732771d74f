"""Handlers that wait for children; processes import them by name."""

from typing import Any

from treadle import ChildFailed, Context, current_context

Payload = dict[str, Any]
CHILD = "double"


async def runs(ctx: Context, payload: Payload) -> Any:
    return await ctx.run(CHILD, {"n": payload["n"]})


def runs_in_thread(ctx: Context, payload: Payload) -> Any:
    return ctx.run(CHILD, {"n": payload["n"]})


async def runs_many(ctx: Context, payload: Payload) -> Any:
    return await ctx.run_many(CHILD, [{"n": n} for n in range(payload["n"])])


def runs_many_in_thread(ctx: Context, payload: Payload) -> Any:
    return ctx.run_many(CHILD, [{"n": n} for n in range(payload["n"])])


async def runs_in_a_step(ctx: Context, payload: Payload) -> Any:
    async def inner() -> Any:
        return await ctx.run(CHILD, {"n": payload["n"]})

    return await ctx.step("inner", inner)


def runs_in_a_step_in_thread(ctx: Context, payload: Payload) -> Any:
    return ctx.step("inner", lambda: ctx.run(CHILD, {"n": payload["n"]}))


async def catches(ctx: Context, payload: Payload) -> Any:
    try:
        return await ctx.run("fails", {})
    except ChildFailed as error:
        return [str(error), error.job_id]


def catches_in_thread(ctx: Context, payload: Payload) -> Any:
    try:
        return ctx.run("fails", {})
    except ChildFailed as error:
        return [str(error), error.job_id]


async def enqueues(ctx: Context, payload: Payload) -> Any:
    return (await ctx.enqueue(CHILD, {"n": 1})).id


def enqueues_in_thread(ctx: Context, payload: Payload) -> Any:
    return ctx.enqueue(CHILD, {"n": 1}).id


def finds_context(payload: Payload) -> str:
    return current_context().job_id


async def returns_much(ctx: Context, payload: Payload) -> int:
    async def text() -> str:
        return "x" * int(payload["n"])

    return len(await ctx.step("text", text))


def returns_much_in_thread(ctx: Context, payload: Payload) -> int:
    return len(ctx.step("text", lambda: "x" * int(payload["n"])))
