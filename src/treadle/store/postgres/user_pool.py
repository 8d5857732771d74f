"""A pool for the own statements of handlers: the engine's connections have plan settings that suit only its own."""

from __future__ import annotations

from typing import Any

import asyncpg


def make_pool(url: str, size: int, *, pooled: bool) -> Any:
    """asyncpg's pool on the running loop. It connects when it is used."""
    options = {"statement_cache_size": 0} if pooled else {}
    pool = asyncpg.create_pool(url, min_size=0, max_size=size, **options)
    try:
        pool.__await__().send(None)  # with nothing to connect, opening it waits for nothing
    except StopIteration:
        return pool
    raise AssertionError("asyncpg connects although min_size is 0")
