"""A job as its events tell of it: without its payload and result if they are large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

MOST_DOCUMENT_BYTES = 16 * 2**10
"""Events carry no payload and no result above this many bytes in all."""


def is_large(job: Mapping[str, Any]) -> bool:
    return len(to_json(job["payload"])) + len(to_json(job["result"])) > MOST_DOCUMENT_BYTES


def without_documents(job: Mapping[str, Any]) -> dict[str, Any]:
    return {**job, "payload": None, "result": None, "truncated": True}
