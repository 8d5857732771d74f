"""Exceptions that are hard to live with, and user code that raises them; at the top level, so a process finds it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer

from treadle import Context, Retry


class Rude(Exception):
    """Its text raises, too."""

    def __str__(self) -> str:
        raise SystemExit(4)

    __repr__ = __str__


class NoTime(Exception):
    """Formatting it raises."""

    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise MemoryError


def _self_made() -> BaseException:
    return type("Strange", (BaseException,), {"__module__": None})("no module")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "Rude": Rude,
    "NoTime": NoTime,
    "strange": _self_made,
    "ExceptionGroup": lambda: ExceptionGroup("two", [ValueError(), KeyError()]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [SystemExit(1), asyncio.CancelledError()]),
}


def misbehave(error: str) -> None:
    if error:
        made = ERRORS[error]()
        raise made


async def handler(payload: dict[str, str]) -> None:
    misbehave(payload["error"])


async def patient_handler(payload: dict[str, str]) -> None:
    await asyncio.sleep(0)  # raises in a later turn of the loop
    misbehave(payload["error"])


def plain_handler(payload: dict[str, str]) -> None:
    misbehave(payload["error"])


async def misbehaves(error: str) -> None:
    await asyncio.sleep(0)  # raises in a later turn of the loop
    misbehave(error)


async def step_in_coroutine(ctx: Context, payload: dict[str, str]) -> None:
    await ctx.step("bad", misbehaves, payload["error"])


async def plain_step_in_coroutine(ctx: Context, payload: dict[str, str]) -> None:
    await ctx.step("bad", misbehave, payload["error"])


async def gathered_steps(ctx: Context, payload: dict[str, str]) -> None:
    await asyncio.gather(ctx.step("bad", misbehaves, payload["error"]), ctx.step("plain", misbehave, payload["error"]))


def step_in_function(ctx: Context, payload: dict[str, str]) -> None:
    ctx.step("bad", misbehave, payload["error"])


def _checked(error: str) -> str:
    if not error.startswith("-"):
        misbehave(error)
    return error


@dataclass
class Checked:
    error: Annotated[str, AfterValidator(_checked)]


async def takes_checked(payload: Checked) -> None: ...


def takes_checked_in_thread(payload: Checked) -> None: ...


def _written(error: str) -> str:
    misbehave(error)
    return error


@dataclass
class Written:
    error: Annotated[str, PlainSerializer(_written)]


async def returns_written(payload: dict[str, str]) -> Written:
    return Written(payload["error"])


def returns_written_in_thread(payload: dict[str, str]) -> Written:
    return Written(payload["error"])


async def middleware(ctx: Context, call: Callable[[], Any]) -> Any:
    result = await call()
    misbehave(ctx.payload.get("error", ""))
    return result


def plain_middleware(ctx: Context, call: Callable[[], Any]) -> Any:
    result = call()
    misbehave(ctx.payload.get("error", ""))
    return result


async def quiet(payload: dict[str, str]) -> None: ...


def quiet_in_thread(payload: dict[str, str]) -> None: ...


class Moody(Retry):
    error = ""

    def decide(self, families: Sequence[str], failures: int) -> int | None:
        misbehave(self.error)
        return None
