"""Handlers that emit in processes, which import them by name."""

from typing import Any

from treadle import Context, InvalidInput


def talk(ctx: Context, payload: dict[str, Any]) -> int:
    for word in payload["words"]:
        ctx.emit(word, channel="tokens")
    return len(payload["words"])


async def talk_in_a_coroutine(ctx: Context, payload: dict[str, Any]) -> int:
    for word in payload["words"]:
        await ctx.emit(word, channel="tokens")
    return len(payload["words"])


def too_much(ctx: Context, payload: dict[str, Any]) -> str:
    try:
        ctx.emit({"number": float("nan")})
    except InvalidInput as error:
        return str(error)
    return "accepted"
